/** Trainings that wait, train or have ended lately; one of them with the sentences that explain it. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { call, path } from "../core/api.js";
import { NONE, count, when, whole, words } from "../core/format.js";
import { EVERY } from "../core/hub.js";
import { awaited, live } from "../core/live.js";
import { empty, gpuLink, interval, link, lossWords, name, shown, state, table } from "../core/parts.js";

const STATES = ["queued", "held", "starting", "running", "stopping", "ended", "lost"];
const OVER = new Set(["ended", "lost"]);
const REFRESH_S = 10;

/** @param {import("../core/page.js").Page} page */
export function open(page) {
  const [one] = page.params;
  const query = { project: page.project === EVERY ? null : page.project };
  const why = one ? page.load(() => call("GET", path`/v1/jobs/${one}/explain`, { query, signal: page.signal }), REFRESH_S) : null;
  const view = () => {
    const rows = live.rows("trainings");
    const heading = one ? html`<p class="crumbs"><a href="/ui/trainings">Trainings</a></p><h1>${name(why?.data?.name ?? one)}</h1>` : html`<h1>Trainings</h1>`;
    if (!rows) return html`${heading}${awaited()}`;
    const wanted = page.query("state");
    const found = one ? rows.filter((row) => row.id === why?.data?.id) : rows.filter((row) => !wanted || row.state === wanted);
    return html`${heading}
      ${why ? shown(why, (of) => html`<p class="summary"><bdi>${of.summary}</bdi></p>`) : filter(page, rows)}
      ${found.length ? list(page, found.sort(before)) : one ? nothing : empty(wanted ? `No training is ${wanted}.` : "No training has been started. This starts one:", wanted ? "" : "smore jobs start")}`;
  };
  return { title: one ?? "Trainings", topics: ["trainings"], view, ready: () => live.settled("trainings") };
}

/** Those that are not over first, by their place; then the newest. @param {any} a @param {any} b */
const before = (a, b) => Number(OVER.has(a.state)) - Number(OVER.has(b.state)) || (a.expected?.place ?? 0) - (b.expected?.place ?? 0) || (a.created_at < b.created_at ? 1 : -1);

/** @param {import("../core/page.js").Page} page @param {any[]} rows */
const filter = (page, rows) => html`
  <p class="quiet">${count(rows.filter((row) => !OVER.has(row.state)).length, "training")} not over.</p>
  <form class="filters" @submit=${(/** @type {Event} */ event) => event.preventDefault()}>
    <label>State <select @change=${(/** @type {any} */ event) => page.refine({ state: event.target.value })}><option value="">any</option>
      ${STATES.map((each) => html`<option ?selected=${each === page.query("state")}>${each}</option>`)}</select></label>
  </form>`;

/** @param {import("../core/page.js").Page} page @param {any[]} rows */
const list = (page, rows) => table({
  caption: "Trainings",
  rows,
  key: (row) => row.id,
  columns: [
    { head: "training", cell: (row) => link(path`/ui/trainings/${row.id}` + (row.project === page.me.project ? "" : path`?project=${row.project}`), name(row.name)) },
    { head: "state", cell: (row) => html`${state(row.outcome ?? row.state)}${row.suspended ? " (suspended)" : nothing}` },
    { head: "project", cell: (row) => name(row.project) },
    { head: "GPU instances", cell: (row) => (row.gpus.length ? row.gpus.map((gpu, i) => html`${i ? ", " : nothing}${gpuLink(gpu)}`) : `waits for ${row.count}`) },
    { head: "iterations", num: true, cell: (row) => html`${whole(row.iterations)}${row.iterations_wanted ? html` of ${whole(row.iterations_wanted)}` : nothing}` },
    { head: "starts or ends", cell: (row) => times(row) },
    { head: "lost to functions, of budget", cell: (row) => (row.measured ? html`<div class="rows slim">${interval(row)}<span class="value">${lossWords(row)}</span></div>` : "not measured: it tells no iterations") },
    { head: "why", cell: (row) => html`<bdi>${row.expected?.message ?? row.reason ?? NONE}</bdi>` },
  ],
});

/** @param {any} row */
function times(row) {
  if (row.ended_at) return html`ended ${when(row.ended_at)}`;
  const { expected } = row;
  if (!expected) return NONE;
  if (expected.place) return expected.start_at ? html`starts ${when(expected.start_at)}..${when(expected.start_late_at)}` : words(expected.why);
  return expected.end_at ? html`ends ${when(expected.end_at)}..${when(expected.end_late_at)}` : "end not known";
}
