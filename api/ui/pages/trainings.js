/** Trainings: those that wait, run and are over; and the form that starts one. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { NONE, percent, when, whole, words } from "../core/format.js";
import { EVERY } from "../core/hub.js";
import { awaited, live } from "../core/live.js";
import { Older, bar, empty, errorRow, filters, gpuLinks, interval, lacking, link, lossWords, name, state, table } from "../core/parts.js";
import { trainingHref } from "./plan_rows.js";
import { startForm } from "./start_form.js";
import { trainingButtons } from "./training_verbs.js";

const STATES = ["queued", "held", "starting", "running", "stopping", "ended", "lost"];
const FILTERS = ["name", "state"];
/** Trainings that the live stream has beside those that are not over. */
const NEWEST = 100;

export function open(page) {
  const older = new Older(page, (cursor) => page.get("/v1/jobs", { limit: NEWEST, cursor, ...page.whose }), "jobs");
  const form = page.may("jobs") ? startForm(page) : null;
  const view = () => {
    const now = live.rows("trainings");
    if (!now) return html`<h1>Trainings</h1>${awaited()}`;
    const held = new Map([...older.rows, ...now].map((job) => [job.id, job]));
    const newest = now.toSorted((a, b) => (a.id < b.id ? 1 : -1));
    const wanted = page.query("name").toLowerCase();
    const rows = [...held.values()].filter((job) => job.name.includes(wanted) && (!page.query("state") || job.state === page.query("state"))).sort(before);
    return html`
      <h1>Trainings</h1>
      ${form ? form() : html`<p>${lacking(page, "jobs")}</p>`}
      ${filters(page, [["name", "Name"], ["state", "State", STATES]])}
      ${rows.length ? table({ caption: "Trainings", rows, after: (job) => errorRow(page.errors.get(job.id), 8), columns: columns(page) })
        : FILTERS.some((each) => page.query(each)) ? empty("No training fits these filters.") : empty("No training has been started yet. This starts one:", "smore jobs start --name NAME -- zoo.train")}
      ${older.view(newest[NEWEST - 1]?.id)}`;
  };
  return { title: "Trainings", topics: ["trainings"], view, ready: () => live.settled("trainings") };
}

const ORDER = ["running", "stopping", "starting", "queued", "held"];
/** Those that go on first, in the order of the queue; then the newest. @param {any} a @param {any} b */
function before(a, b) {
  const rank = (job) => (ORDER.includes(job.state) ? ORDER.indexOf(job.state) : ORDER.length);
  return rank(a) - rank(b) || (a.expected?.place ?? 0) - (b.expected?.place ?? 0) || (a.id < b.id ? 1 : -1);
}

export const progress = (job) => (job.iterations_wanted
  ? html`<div class="rows slim">${bar(job.iterations / job.iterations_wanted, `${percent(job.iterations / job.iterations_wanted)} of its iterations`)}<span class="value">${whole(job.iterations)} of ${whole(job.iterations_wanted)}</span></div>`
  : job.iterations ? html`${whole(job.iterations)} iterations` : NONE);

/** When it ends, or ended; of one that waits also when it starts. @param {any} job */
export function ends(job) {
  if (job.ended_at) return when(job.ended_at);
  const { end_at: end, end_late_at: late, promised_by: by, at_risk: risk, place, start_at: start } = job.expected ?? {};
  const promise = by ? html`, promised by ${when(by)}${risk ? html` <b class="bad">at risk: ${words(risk)}</b>` : nothing}` : nothing;
  if (!end) return html`${NONE}${promise}`;
  return html`${place && start ? html`<span class="quiet">starts</span> ${when(start)}, <span class="quiet">ends</span> ` : nothing}${when(end)}${late && Date.parse(late) > Date.parse(end) + 60_000 ? html`<span class="quiet">..</span>${when(late)}` : nothing}${promise}`;
}

const columns = (page) => [
  { head: "training", cell: (job) => html`${link(trainingHref(job, page.me), name(page.project === EVERY ? `${job.project}/${job.name}` : job.name))}${job.expected?.guest ? html` <span class="guest">guest</span>` : nothing}` },
  { head: "state", cell: (job) => html`${state(job.outcome ?? job.state)}${job.suspended ? " suspended" : nothing}` },
  { head: "GPU instances", cell: (job) => gpuLinks(job.gpus) },
  { head: "progress", cell: progress },
  { head: "ends", cell: ends },
  { head: "lost to functions, of budget", label: "lost, of budget", cell: (job) => (job.started_at ? html`<div class="rows slim">${interval(job)}<span class="value">${lossWords(job)}</span></div>` : NONE) },
  { head: "why it is there", cell: (job) => html`<bdi>${job.expected?.message || job.reason || NONE}</bdi>` },
  { head: html`<span class="hidden">action</span>`, label: "action", cell: (job) => trainingButtons(page, job) },
];
