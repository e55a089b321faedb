/** Invocations by state, function, GPU instance, cause and time; the filter is in the address. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { call, path } from "../core/api.js";
import { NONE, ago, clock, count, ms, seconds, when, words } from "../core/format.js";
import { EVERY } from "../core/hub.js";
import { live } from "../core/live.js";
import { Older, empty, errorRow, filters, gpuLink, inProject, lacking, link, name, shown, state, table } from "../core/parts.js";

const STATES = ["queued", "dispatched", "running", "succeeded", "failed", "rejected", "expired", "cancelled"];
/** Those that are over. */
export const ENDED = new Set(STATES.slice(3));
const FILTERS = ["function", "state", "gpu", "cause", "since", "until"];
const BACK_S = { "last hour": 3600, "last 6 hours": 21600, "last day": 86400, "last week": 604800 };
const PAGE = 100;
const LOOK_S = 10;

export function open(page) {
  const ask = (cursor) => page.get("/v1/invocations", { ...page.queries(FILTERS), limit: PAGE, ...page.whose, cursor });
  const older = new Older(page, ask, "invocations");
  const chosen = new Set();
  const first = older.newest();
  let seen = [];
  page.every(LOOK_S, async () => {
    if (!first.data || page.query("until")) return;
    seen = await ask("").then(({ invocations }) => invocations, () => []);
    page.draw();
  });
  const cancelAll = async () => {
    const ids = [...chosen];
    const sure = await page.ask({ title: `Cancel ${count(ids.length, "invocation")}`, action: "Cancel them", danger: true, text: "What waits is taken out of its queue; what runs alone is stopped; of one that runs in a batch the result is discarded." });
    if (!sure) return;
    for (const id of ids) {
      chosen.delete(id);
      await page.act(id, () => call("POST", path`/v1/invocations/${id}/cancel`), { done: () => `${id.slice(-8)} is cancelled.` });
    }
  };
  const mine = (row) => row.project === page.me.project;
  const columns = [
    ...(page.may("invoke") ? [{ head: html`<span class="hidden">select</span>`, label: "select", cell: (row) => (ENDED.has(row.state) || !mine(row) ? nothing : html`<input type="checkbox" aria-label="Select ${row.id}" .checked=${chosen.has(row.id)} @change=${(e) => { e.target.checked ? chosen.add(row.id) : chosen.delete(row.id); page.draw(); }}>`) }] : []),
    { head: "invocation", cell: (row) => link(inProject(path`/ui/invocations/${row.id}`, row.project, page.me), name(row.id)) },
    { head: "state", cell: (row) => state(row.state) },
    { head: "function", cell: (row) => html`${link(inProject(path`/ui/functions/${row.function}`, row.project, page.me), name(`${page.project === EVERY ? `${row.project}/` : ""}${row.function}@${row.revision}`))}` },
    { head: "GPU instance", cell: (row) => gpuLink(row.gpu) },
    { head: "arrival", cell: (row) => when(row.arrival_at, true) },
    { head: "took", num: true, cell: (row) => (row.finished_at ? seconds((Date.parse(row.finished_at) - Date.parse(row.arrival_at)) / 1000) : NONE) },
    { head: "late by", num: true, cell: (row) => (row.late_ms ? html`<b class="bad">${ms(row.late_ms)}</b>` : row.state === "succeeded" ? "in time" : NONE) },
    { head: "start", cell: (row) => (row.cold == null ? NONE : row.cold ? "cold" : "warm") },
    { head: "cause", cell: (row) => (row.cause && row.cause !== "ok" ? words(row.cause) : NONE) },
  ];
  const view = () => html`
    <h1>Invocations</h1>
    ${form(page)} ${lacking(page, "invoke")}
    ${shown(first, (rows) => {
      const all = [...rows, ...older.rows];
      const newer = seen.filter((each) => each.id > (rows[0]?.id ?? "")).length;
      if (!all.length && !older.cursor) return FILTERS.some((each) => page.query(each)) ? empty("No invocation fits these filters, of those that the history keeps.") : empty("Nothing has been called yet. This calls a function:", "smore invoke NAME --input '{\"x\": 1}'");
      return html`
        ${newer ? html`<p><button @click=${first.reload}>Show ${newer === PAGE ? `${PAGE} or more` : newer} newer</button></p>` : nothing}
        ${chosen.size ? html`<p class="bulk"><button class="danger" ?disabled=${live.stale} @click=${cancelAll}>Cancel ${chosen.size}…</button> <button @click=${() => { chosen.clear(); page.draw(); }}>Select none</button></p>` : nothing}
        ${table({ caption: "Invocations", rows: all, columns, after: (row) => errorRow(page.errors.get(row.id), columns.length) })}
        ${older.view()}
        ${older.cursor ? nothing : html`<p class="quiet">These are all that the history has.</p>`}`;
    })}`;
  return { title: "Invocations", topics: [], view };
}

function form(page) {
  const back = (event) => page.refine({ since: event.target.value ? ago(Number(event.target.value)) : "", until: "" });
  const set = FILTERS.filter((each) => page.query(each));
  const text = (of) => (of === "since" || of === "until" ? clock(new Date(page.query(of)), true) : page.query(of));
  return html`${filters(page, [["function", "Function"], ["state", "State", STATES], ["gpu", "GPU instance"], ["cause", "Cause", "worker_lost"]],
    html`<label>Arrival <select @change=${back}><option value="">any time</option>${Object.entries(BACK_S).map(([word, s]) => html`<option value=${s}>${word}</option>`)}</select></label>`)}
    ${set.length ? html`<p class="chips">${set.map((each) => html`<button class="chip" @click=${() => page.refine({ [each]: "" })}>${each} <bdi>${text(each)}</bdi> <span aria-hidden="true">×</span><span class="hidden">: remove this filter</span></button>`)}</p>` : nothing}`;
}
