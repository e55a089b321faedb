/** Invocations by state, function, GPU instance, cause and time; the filter is in the address. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { call, path } from "../core/api.js";
import { NONE, clock, count, ms, seconds, when, words } from "../core/format.js";
import { EVERY } from "../core/hub.js";
import { live } from "../core/live.js";
import { empty, errorRow, gpuLink, inProject, link, name, shown, state, table } from "../core/parts.js";

const STATES = ["queued", "dispatched", "running", "succeeded", "failed", "rejected", "expired", "cancelled"];
const ENDED = new Set(["succeeded", "failed", "rejected", "expired", "cancelled"]);
const FILTERS = ["function", "state", "gpu", "cause", "since", "until"];
const BACK_S = { "last hour": 3600, "last 6 hours": 21600, "last day": 86400, "last week": 604800 };
const PAGE = 100;
const LOOK_S = 10;

/** @param {import("../core/page.js").Page} page */
export function open(page) {
  const filter = () => Object.fromEntries(FILTERS.map((each) => [each, page.query(each)]));
  const ask = (/** @type {any} */ more) => call("GET", "/v1/invocations", { query: { ...filter(), limit: PAGE, ...page.whose, ...more }, signal: page.signal });
  /** @type {any[]} */
  let older = [];
  /** @type {any} */
  let cursor;
  let newer = 0;
  const chosen = new Set();
  const first = page.load(async () => {
    const answer = await ask({});
    older = [];
    newer = 0;
    cursor = answer.next_cursor;
    return answer.invocations;
  });
  page.every(LOOK_S, async () => {
    if (!first.data || page.query("until")) return;
    const { invocations } = await ask({}).catch(() => ({ invocations: [] }));
    const top = first.data[0]?.id ?? "";
    newer = invocations.filter((each) => each.id > top).length;
    page.draw();
  });
  const more = async () => {
    try {
      const answer = await ask({ cursor });
      older = [...older, ...answer.invocations];
      cursor = answer.next_cursor;
      page.errors.delete("older");
    } catch (error) {
      page.errors.set("older", error);
    }
    page.draw();
  };
  const cancelAll = async () => {
    const ids = [...chosen];
    const sure = await page.ask({ title: `Cancel ${count(ids.length, "invocation")}`, action: "Cancel them", danger: true, text: "What waits is taken out of its queue; what runs alone is stopped; of one that runs in a batch the result is discarded." });
    if (!sure) return;
    for (const id of ids) {
      chosen.delete(id);
      await page.act(id, () => call("POST", path`/v1/invocations/${id}/cancel`), { done: () => `${id.slice(-8)} is cancelled.` });
    }
  };
  const mine = (/** @type {any} */ row) => row.project === page.me.project;
  const columns = [
    ...(page.may("invoke") ? [{ head: html`<span class="hidden">select</span>`, label: "select", cell: (row) => (ENDED.has(row.state) || !mine(row) ? nothing : html`<input type="checkbox" aria-label="Select ${row.id}" .checked=${chosen.has(row.id)} @change=${(/** @type {any} */ e) => { e.target.checked ? chosen.add(row.id) : chosen.delete(row.id); page.draw(); }}>`) }] : []),
    { head: "invocation", cell: (row) => link(inProject(path`/ui/invocations/${row.id}`, row.project, page.me), name(row.id)) },
    { head: "state", cell: (row) => state(row.state) },
    { head: "function", cell: (row) => html`${link(inProject(path`/ui/functions/${row.function}`, row.project, page.me), name(`${page.project === EVERY ? `${row.project}/` : ""}${row.function}@${row.revision}`))}` },
    { head: "GPU instance", cell: (row) => gpuLink(row.gpu) },
    { head: "arrival", cell: (row) => when(row.arrival_at, true) },
    { head: "took", num: true, cell: (row) => (row.finished_at ? seconds((Date.parse(row.finished_at) - Date.parse(row.arrival_at)) / 1000) : NONE) },
    { head: "late by", num: true, cell: (row) => (row.late_ms ? html`<b class="bad">${ms(row.late_ms)}</b>` : row.finished_at ? "in time" : NONE) },
    { head: "start", cell: (row) => (row.cold == null ? NONE : row.cold ? "cold" : "warm") },
    { head: "cause", cell: (row) => (row.cause && row.cause !== "ok" ? words(row.cause) : NONE) },
  ];
  const view = () => html`
    <h1>Invocations</h1>
    ${form(page)}
    ${shown(first, (rows) => {
      const all = [...rows, ...older];
      if (!all.length && !cursor) return FILTERS.some((each) => page.query(each)) ? empty("No invocation fits these filters, of those that the history keeps.") : empty("Nothing has been called yet. This calls a function:", "smore run NAME '{\"x\": 1}'");
      return html`
        ${newer ? html`<p><button @click=${first.reload}>Show ${newer === PAGE ? `${PAGE} or more` : newer} newer</button></p>` : nothing}
        ${chosen.size ? html`<p class="bulk"><button class="danger" ?disabled=${live.stale} @click=${cancelAll}>Cancel ${chosen.size}…</button> <button @click=${() => { chosen.clear(); page.draw(); }}>Select none</button></p>` : nothing}
        ${table({ caption: "Invocations", rows: all, key: (row) => row.id, columns, after: (row) => errorRow(page.errors.get(row.id), columns.length) })}
        ${page.errors.has("older") ? html`<p class="bad"><bdi>${page.errors.get("older").message}</bdi></p>` : nothing}
        <p>${cursor ? html`<button @click=${more}>Older</button>` : html`<span class="quiet">These are all that the history has.</span>`}</p>`;
    })}`;
  return { title: "Invocations", topics: [], view };
}

/** @param {import("../core/page.js").Page} page */
function form(page) {
  const change = (/** @type {string} */ of) => (/** @type {any} */ event) => page.refine({ [of]: event.target.value.trim() });
  const back = (/** @type {any} */ event) => page.refine({ since: event.target.value ? new Date(Date.now() - 1000 * Number(event.target.value)).toISOString() : "", until: "" });
  const set = FILTERS.filter((each) => page.query(each));
  const text = (/** @type {string} */ of) => (of === "since" || of === "until" ? clock(new Date(page.query(of)), true) : page.query(of));
  return html`<form class="filters" role="search" @submit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <label>Function <input type="search" .value=${page.query("function")} pattern="[a-z0-9\\-]{1,63}" @change=${change("function")}></label>
      <label>State <select @change=${change("state")}><option value="">any</option>${STATES.map((each) => html`<option ?selected=${each === page.query("state")}>${each}</option>`)}</select></label>
      <label>GPU instance <input type="search" .value=${page.query("gpu")} @change=${change("gpu")}></label>
      <label>Cause <input type="search" .value=${page.query("cause")} placeholder="worker_lost" @change=${change("cause")}></label>
      <label>Arrival <select @change=${back}><option value="">any time</option>${Object.entries(BACK_S).map(([word, s]) => html`<option value=${s}>${word}</option>`)}</select></label>
    </form>
    ${set.length ? html`<p class="chips">${set.map((each) => html`<button class="chip" @click=${() => page.refine({ [each]: "" })}>${each} <bdi>${text(each)}</bdi> <span aria-hidden="true">×</span><span class="hidden">: remove this filter</span></button>`)}</p>` : nothing}`;
}
