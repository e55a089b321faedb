/** Who changed what. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { call } from "../core/api.js";
import { when } from "../core/format.js";
import { empty, name, shown, table } from "../core/parts.js";

const FILTERS = ["target", "route", "key", "since", "until"];

/** @param {import("../core/page.js").Page} page */
export function open(page) {
  const filter = () => Object.fromEntries([...FILTERS, "project"].map((each) => [each, page.query(each)]));
  const ask = (/** @type {any} */ more) => call("GET", "/v1/audit", { query: { ...filter(), ...more }, signal: page.signal });
  /** @type {any[]} */
  let older = [];
  /** @type {any} */
  let cursor;
  const first = page.load(async () => {
    const answer = await ask({});
    older = [];
    cursor = answer.next_cursor;
    return answer.entries;
  });
  const more = async () => {
    const answer = await ask({ cursor }).catch((error) => (page.errors.set("older", error), null));
    if (answer) {
      older = [...older, ...answer.entries];
      cursor = answer.next_cursor;
    }
    page.draw();
  };
  const change = (/** @type {string} */ of) => (/** @type {any} */ event) => page.refine({ [of]: event.target.value.trim() });
  const field = (/** @type {string} */ of, /** @type {string} */ word, /** @type {string} */ hint) => html`<label>${word} <input type="search" .value=${page.query(of)} placeholder=${hint} @change=${change(of)}></label>`;
  const view = () => html`
    <h1>Audit</h1>
    <form class="filters" role="search" @submit=${(/** @type {Event} */ event) => event.preventDefault()}>
      ${field("target", "What", "function/echo")}${field("route", "Route", "pause")}${field("key", "Key", "its id")}
    </form>
    ${shown(first, (entries) => {
      const all = [...entries, ...older];
      if (!all.length) return empty(FILTERS.some((each) => page.query(each)) ? "No change fits these filters." : "Nothing has been changed yet.");
      return html`${table({
        caption: "Changes",
        rows: all,
        key: (entry) => entry.id,
        columns: [
          { head: "when", cell: (entry) => when(entry.at, true) },
          { head: "who", cell: (entry) => html`${entry.key_name ? html`<bdi>${entry.key_name}</bdi> ` : nothing}${name(entry.key_id)}${entry.session ? html`<br><span class="quiet">in a session</span>` : nothing}` },
          { head: "project", cell: (entry) => name(entry.project) },
          { head: "what", cell: (entry) => html`${name(entry.target)}${entry.target_name ? html` <bdi>${entry.target_name}</bdi>` : nothing}<br><span class="quiet mono">${entry.route}</span>` },
          { head: "before → after", cell: difference },
          { head: "request", cell: (entry) => name(entry.request_id) },
        ],
      })}
      ${page.errors.has("older") ? html`<p class="bad"><bdi>${page.errors.get("older").message}</bdi></p>` : nothing}
      ${cursor ? html`<p><button @click=${more}>Older</button></p>` : nothing}`;
    })}`;
  return { title: "Audit", topics: [], view };
}

/** The members that differ. @param {any} entry */
function difference({ before, after }) {
  const names = [...new Set([...Object.keys(before ?? {}), ...Object.keys(after ?? {})])];
  const text = (/** @type {any} */ of, /** @type {string} */ member) => (of && member in of ? JSON.stringify(of[member]) : "–");
  const changed = names.filter((member) => text(before, member) !== text(after, member));
  if (!changed.length) return before === null ? "made" : after === null ? "deleted" : "no member changed";
  return html`<ul class="plain">${changed.map((member) => html`<li><span class="quiet">${member}</span> <bdi class="mono">${text(before, member)} → ${text(after, member)}</bdi></li>`)}</ul>`;
}
