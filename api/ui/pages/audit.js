/** Who changed what. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { NONE, clock, ms, seconds, when, words } from "../core/format.js";
import { Older, empty, filters, name, shown, table } from "../core/parts.js";

const FILTERS = ["target", "route", "key", "since", "until"];

export function open(page) {
  const older = new Older(page, (cursor) => page.get("/v1/audit", { ...page.queries([...FILTERS, "project"]), cursor }), "entries");
  const first = older.newest();
  const view = () => html`
    <h1>Audit</h1>
    ${filters(page, [["target", "What", "function/echo"], ["route", "Route", "pause"], ["key", "Key", "its id"]])}
    ${shown(first, (entries) => {
      const all = [...entries, ...older.rows];
      if (!all.length) return empty(FILTERS.some((each) => page.query(each)) ? "No change fits these filters." : "Nothing has been changed yet.");
      return html`${table({
        caption: "Changes",
        rows: all,
        columns: [
          { head: "when", cell: (entry) => when(entry.at, true) },
          { head: "who", cell: (entry) => html`${entry.key_name ? html`<bdi>${entry.key_name}</bdi> ` : nothing}${name(entry.key_id)}${entry.session ? html`<br><span class="quiet">in a session</span>` : nothing}` },
          { head: "project", cell: (entry) => name(entry.project) },
          { head: "what", cell: (entry) => html`${name(entry.target)}${entry.target_name ? html` <bdi>${entry.target_name}</bdi>` : nothing}<br><span class="quiet mono">${entry.route}</span>` },
          { head: "before → after", cell: difference },
          { head: "request", cell: (entry) => name(entry.request_id) },
        ],
      })}
      ${older.view()}`;
    })}`;
  return { title: "Audit", topics: [], view };
}

/** A number in the unit that its member's name says. @param {string} member @param {any} value */
const told = (member, value) => (typeof value !== "number" ? value : member.endsWith("_s") ? seconds(value) : member.endsWith("_ms") ? ms(value) : /_(at|until)$/.test(member) ? clock(new Date(1000 * value), true) : value);

/** The members that differ. @param {any} entry */
function difference({ before, after }) {
  const names = [...new Set([...Object.keys(before ?? {}), ...Object.keys(after ?? {})])];
  const text = (of, member) => (of && member in of ? JSON.stringify(of[member]) : NONE);
  const said = (of, member) => (of?.[member] == null ? NONE : typeof of[member] === "number" ? told(member, of[member]) : JSON.stringify(of[member], told));
  const unset = (member) => before === null && ["null", '""', "[]", "{}"].includes(text(after, member));
  const changed = names.filter((member) => text(before, member) !== text(after, member) && !unset(member));
  if (!changed.length) return before === null ? "made" : after === null ? "deleted" : "no member changed";
  return html`<ul class="plain">${changed.map((member) => html`<li><span class="quiet">${words(member.replace(/_m?s$/, ""))}</span> <bdi class="mono">${said(before, member)} → ${said(after, member)}</bdi></li>`)}</ul>`;
}
