/** Trainings: those that wait, run and are over; and the form that starts one. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { call } from "../core/api.js";
import { NONE, count, percent, when, whole } from "../core/format.js";
import { EVERY } from "../core/hub.js";
import { awaited, live } from "../core/live.js";
import { bar, empty, errorRow, gpuLink, interval, link, lossWords, name, state, table } from "../core/parts.js";
import { trainingHref } from "./plan_rows.js";
import { startForm } from "./start_form.js";
import { trainingButtons } from "./training_verbs.js";

const STATES = ["queued", "held", "starting", "running", "stopping", "ended", "lost"];
const FILTERS = ["name", "state"];
/** Trainings that the live stream has beside those that are not over. */
const NEWEST = 100;

/** @param {import("../core/page.js").Page} page */
export function open(page) {
  /** @type {any[]} */
  let older = [];
  /** @type {any} */
  let cursor;
  const form = page.may("jobs") ? startForm(page) : null;
  const more = async (/** @type {any[]} */ rows) => {
    const answer = await call("GET", "/v1/jobs", { query: { limit: NEWEST, cursor: cursor ?? rows[NEWEST - 1].id, ...page.whose }, signal: page.signal })
      .catch((error) => (page.errors.set("older", error), null));
    if (answer) {
      page.errors.delete("older");
      older = [...older, ...answer.jobs];
      cursor = answer.next_cursor;
    }
    page.draw();
  };
  const view = () => {
    const now = live.rows("trainings");
    if (!now) return html`<h1>Trainings</h1>${awaited()}`;
    const held = new Map([...older, ...now].map((job) => [job.id, job]));
    const newest = now.toSorted((a, b) => (a.id < b.id ? 1 : -1));
    const wanted = page.query("name").toLowerCase();
    const rows = [...held.values()].filter((job) => job.name.includes(wanted) && (!page.query("state") || job.state === page.query("state"))).sort(before);
    return html`
      <h1>Trainings</h1>
      ${form ? form.view() : html`<p class="quiet">This session may not start trainings. In a terminal: <code>smore jobs start -- zoo.train</code></p>`}
      <form class="filters" role="search" @submit=${(/** @type {Event} */ event) => event.preventDefault()}>
        <label>Name <input type="search" .value=${page.query("name")} @change=${(/** @type {any} */ e) => page.refine({ name: e.target.value.trim() })}></label>
        <label>State <select @change=${(/** @type {any} */ e) => page.refine({ state: e.target.value })}><option value="">any</option>${STATES.map((each) => html`<option ?selected=${each === page.query("state")}>${each}</option>`)}</select></label>
      </form>
      ${rows.length ? table({ caption: "Trainings", rows, key: (job) => job.id, after: (job) => errorRow(page.errors.get(job.id), 8), columns: columns(page) })
        : FILTERS.some((each) => page.query(each)) ? empty("No training fits these filters.") : empty("No training has been started yet. This starts one:", "smore jobs start --name NAME -- zoo.train")}
      ${page.errors.has("older") ? html`<p class="bad"><bdi>${page.errors.get("older").message}</bdi></p>` : nothing}
      ${cursor !== null && newest.length >= NEWEST ? html`<p><button @click=${() => more(newest)}>Older</button></p>` : nothing}`;
  };
  return { title: "Trainings", topics: ["trainings"], view, ready: () => live.settled("trainings"), closed: () => form?.close() };
}

const ORDER = ["running", "stopping", "starting", "queued", "held"];
/** Those that go on first, in the order of the queue; then the newest. @param {any} a @param {any} b */
function before(a, b) {
  const rank = (/** @type {any} */ job) => (ORDER.includes(job.state) ? ORDER.indexOf(job.state) : ORDER.length);
  return rank(a) - rank(b) || (a.expected?.place ?? 0) - (b.expected?.place ?? 0) || (a.id < b.id ? 1 : -1);
}

/** @param {any} job */
export const progress = (job) => (job.iterations_wanted
  ? html`<div class="rows slim">${bar(job.iterations / job.iterations_wanted, `${percent(job.iterations / job.iterations_wanted)} of its iterations`)}<span class="value">${whole(job.iterations)} of ${whole(job.iterations_wanted)}</span></div>`
  : job.iterations ? html`${whole(job.iterations)} iterations` : NONE);

/** When it ends, or ended. @param {any} job */
export function ends(job) {
  if (job.ended_at) return when(job.ended_at);
  const { end_at: end, end_late_at: late } = job.expected ?? {};
  if (!end) return NONE;
  return html`${when(end)}${late && Date.parse(late) > Date.parse(end) + 60_000 ? html`<span class="quiet">..</span>${when(late)}` : nothing}`;
}

/** @param {import("../core/page.js").Page} page */
const columns = (page) => [
  { head: "training", cell: (/** @type {any} */ job) => html`${link(trainingHref(job, page.me), name(page.project === EVERY ? `${job.project}/${job.name}` : job.name))}${job.expected?.guest ? html` <span class="guest">guest</span>` : nothing}` },
  { head: "state", cell: (/** @type {any} */ job) => html`${state(job.outcome ?? job.state)}${job.suspended ? " suspended" : nothing}` },
  { head: "GPU instances", cell: (/** @type {any} */ job) => (job.gpus.length > 2 ? html`<span title=${job.gpus.join(", ")}>${count(job.gpus.length, "GPU instance")}</span>` : job.gpus.length ? job.gpus.map((/** @type {string} */ gpu, /** @type {number} */ i) => html`${i ? ", " : nothing}${gpuLink(gpu)}`) : NONE) },
  { head: "progress", cell: progress },
  { head: "ends", cell: ends },
  { head: "lost to functions, of budget", label: "lost, of budget", cell: (/** @type {any} */ job) => (job.started_at ? html`<div class="rows slim">${interval(job)}<span class="value">${lossWords(job)}</span></div>` : NONE) },
  { head: "why it is there", cell: (/** @type {any} */ job) => html`<bdi>${job.expected?.message || job.reason || NONE}</bdi>` },
  { head: html`<span class="hidden">action</span>`, label: "action", cell: (/** @type {any} */ job) => trainingButtons(page, job) },
];
