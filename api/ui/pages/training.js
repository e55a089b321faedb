/** One training: where it stands and why, what it lost against its budget, and what ran beside it. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { path } from "../core/api.js";
import { Charts } from "../core/chart.js";
import { NONE, ago, count, num, percent, seconds, when, whole, words } from "../core/format.js";
import { live } from "../core/live.js";
import { choice, empty, failed, figure, gpuLink, gpuLinks, interval, joined, lacking, link, lossWords, name, printed, shown, state, table } from "../core/parts.js";
import { trainingHref } from "./plan_rows.js";
import { OVER, WAITING, trainingVerbs } from "./training_verbs.js";
import { ends, progress } from "./trainings.js";

/** Spans of the charts, seconds; null = its whole life. @type {Record<string, number|null>} */
const SPANS = { life: null, "1h": 3600, "6h": 21600, "24h": 86400, "7d": 604800 };
const REFRESH_S = 10;
const SERIES_S = 60;
const LINES = 200;

export function open(page) {
  const [reference] = page.params;
  const query = { project: page.home };
  const get = (what, more = {}) => page.get(path`/v1/jobs/${reference}` + what, { ...query, ...more });
  const job = page.load(() => get(""), REFRESH_S);
  const why = page.load(() => get("/explain"), REFRESH_S);
  const statement = page.load(() => get("/statement"), REFRESH_S);
  const attempts = page.load(() => get("/attempts"), REFRESH_S);
  const series = page.load(async () => {
    const length = SPANS[page.query("span")] ?? null;
    const of = job.data ?? (await get(""));
    const since = length === null ? of.started_at ?? of.created_at : ago(length);
    return get("/series", { since, until: length === null ? of.ended_at : null });
  }, SERIES_S);
  const logs = page.load(() => get("/logs", { lines: LINES, rank: page.query("rank") || 0 }), REFRESH_S);
  const charts = chartsOf(page);
  const view = () => {
    if (job.error?.status === 404 && !job.data) return html`<p class="crumbs"><a href="/ui/trainings">Trainings</a></p><h1>Training</h1>${failed(job.error)}<p class="quiet">It may be another project's.</p>`;
    return html`<p class="crumbs"><a href="/ui/trainings">Trainings</a></p>${shown(job, (of) => {
      const row = live.rows("trainings")?.find((each) => each.id === of.id) ?? of;
      return html`
        ${head(page, row, why)}
        ${row.started_at || OVER.has(row.state) ? html`<section><h2>Lost to functions, against its budget</h2>${shown(statement, (said) => account(said, row))}</section>
        <section><h2>Over time ${choice(page, "span", Object.keys(SPANS), page.query("span") || "life", "Time")}</h2>${shown(series, (data) => plots(charts, data))}</section>
        <section><h2>What ran beside it</h2>${shown(statement, (said) => beside(page, said, row))}</section>` : nothing}
        ${WAITING.has(row.state) ? html`<section><h2>What stands against it now</h2>${shown(why, places)}</section>` : nothing}
        <section><h2>Attempts</h2>${shown(attempts, (data) => tries(data.attempts, row))}</section>
        <section><h2>Decisions</h2>${shown(why, decisions)}</section>
        <section><h2>What it printed ${row.count > 1 ? choice(page, "rank", Array.from({ length: row.count }, (_, i) => String(i)), page.query("rank") || "0", "Rank") : nothing}</h2>
          ${shown(logs, (data) => (data.lines.length ? printed(data.lines) : empty(row.source === "started" ? "It has printed nothing yet." : "It was started elsewhere, and prints there.")))}</section>`;
    })}`;
  };
  return { title: reference, topics: ["trainings"], view };
}

function head(page, job, why) {
  const verbs = trainingVerbs(page, job);
  const told = job.told_end_at ? html` · told at its start: ends ${when(job.told_end_at)}..${when(job.told_late_at)} <span class="quiet">(${words(job.told_source)})</span>` : nothing;
  return html`
    <h1>${name(job.name)} ${state(job.outcome ?? job.state)}</h1>
    <p class="quiet">${name(job.id)}${job.project === page.me.project ? nothing : html` · project ${name(job.project)}`} · ${name(job.argv.join(" "))} · submitted ${when(job.created_at)}${job.started_at ? html` · first start ${when(job.started_at)}` : nothing}${job.ended_at ? html` · ended ${when(job.ended_at)}` : nothing}${told}</p>
    <p class="summary">${why.data ? html`<bdi>${why.data.summary}</bdi>` : why.error ? nothing : "…"}</p>
    ${why.error ? failed(why.error, why.reload) : nothing}
    <div class="buttons start">${verbs.map((verb) => html`<button class=${verb.danger ? "danger" : ""} title=${verb.hint} ?disabled=${page.off(job.id)} @click=${verb.run}>${verb.label}</button>`)}
      ${OVER.has(job.state) ? nothing : lacking(page, "jobs")}</div>
    ${page.errors.has(job.id) ? failed(page.errors.get(job.id)) : nothing}
    <div class="figures">
      ${figure(gpuLinks(job.gpus), OVER.has(job.state) ? "it was on last" : "it is on")}
      ${figure(progress(job), "done")}
      ${figure(ends(job), job.ended_at ? "ended" : "expected end")}
      ${figure(seconds(job.solo_s), "an iteration alone")}
      ${figure(seconds(job.shared_s), html`an iteration beside functions${job.degradation === null ? nothing : html`, ${percent(Math.abs(job.degradation))} ${job.degradation < 0 ? "less" : "more"}`}`)}
      ${figure(`${job.restarted} of ${job.restarts}`, "starts after failures")}
    </div>`;
}

/** The words of `smore jobs statement`, and the interval as a drawing. @param {any} said @param {any} job */
const account = (said, job) => html`
  <p><bdi>${said.summary}</bdi></p>
  <div class="wide-interval">${interval(said)}</div>
  <p><b>lost ${lossWords(said)}</b> · ${state(said.verdict)} · ${count(said.windows, "closed window")}${said.missing_windows ? html` · ${count(said.missing_windows, "window")} missing for a loss${said.missing_s === null ? nothing : `, about ${seconds(said.missing_s)}`}` : nothing}${said.windows_to_go && !OVER.has(job.state) ? html` · ${count(said.windows_to_go, "more window")} to the proof${said.to_go_s === null ? nothing : `, about ${seconds(said.to_go_s)}`}` : nothing}</p>
  ${said.past_budgets.length ? html`<details><summary>Budgets before</summary>${table({
    caption: "Budgets before", rows: said.past_budgets,
    columns: [
      { head: "from", cell: (span) => when(span.since) },
      { head: "to", cell: (span) => when(span.until) },
      { head: "lost, of budget", cell: (span) => lossWords(span) },
      { head: "windows", num: true, cell: (span) => whole(span.windows) },
      { head: "verdict", cell: (span) => state(span.verdict) },
    ],
  })}</details>` : nothing}
  ${said.steps.length ? html`<details><summary>Steps that kept the budget (${said.steps.length})</summary>${table({
    caption: "Steps that kept the budget, the newest first", rows: said.steps,
    columns: [
      { head: "from", cell: (step) => when(step.at, true) },
      { head: "GPU instance", cell: (step) => gpuLink(step.gpu) },
      { head: "step", cell: (step) => words(step.step) },
      { head: "functions may work", num: true, cell: (step) => `${percent(step.duty)} of the time` },
      { head: "predicted losses ×", label: "factor", num: true, cell: (step) => num(step.factor) },
    ],
  })}</details>` : nothing}`;

const chartsOf = (page) => new Charts(page, [
  { title: "Time of an iteration", show: seconds, lines: (data) => [
    { label: "alone", token: "training", values: data.alone_s },
    { label: "beside functions", token: "functions", dash: [6, 4], values: data.beside_s },
  ] },
  { title: "Lost to functions so far, with its 95 % band", show: percent, lines: (data) => [
    { label: "upper bound", token: "rest", values: data.lost_high, drawn: data.lost_high, area: true },
    { label: "lower bound", token: "rest", values: data.lost_low },
    { label: "lost", token: "training", values: data.lost },
    { label: "budget", token: "bad", dash: [2, 3], values: data.at.map(() => data.budget), aside: true },
  ] },
  { title: "Time in which functions may work beside it", show: percent, most: 1, lines: (data) => [{ label: "duty", token: "functions", dash: [6, 4], values: data.duty }] },
  { title: "Seconds that functions ran beside it, a minute", show: seconds, lines: (data) => [{ label: "harvested", token: "functions", dash: [6, 4], values: data.harvested_s.map((s) => (s === null ? null : (60 * s) / data.step_s)) }] },
]);
function plots(charts, data) {
  const parts = charts.view(data, (title, chart) => chart && html`<h3>${title}</h3>${chart}`);
  return parts.some(Boolean) ? parts : empty("Nothing was measured of it in this time.");
}

const beside = (page, said, job) => html`
  <p>Functions ran ${seconds(said.harvested_s)} of its GPU instances' time beside it, in ${count(said.invocations, "invocation")}${said.harvested_since && Date.parse(said.harvested_since) > Date.parse(said.since) ? html`, counted since ${when(said.harvested_since)}` : nothing}.
    ${job.gpus.slice(0, 1).map((gpu) => html`<a href=${path`/ui/invocations` + path`?gpu=${gpu}`}>Invocations there</a>`)}</p>
  ${job.beside_now.length ? html`<p>Nobody placed these there, and they train on its GPU instances too: ${joined(job.beside_now)}.</p>` : nothing}
  ${said.beside.length ? table({
    caption: "Trainings beside it", rows: said.beside,
    columns: [
      { head: "training", cell: (each) => html`${each.name ? link(trainingHref({ id: each.id, project: job.project }, page.me), name(each.name)) : "another project's"} <span class=${each.guest ? "quiet" : "guest"}>${each.guest ? "its host" : "its guest"}</span>` },
      { head: "from", cell: (each) => when(each.since) },
      { head: "to", cell: (each) => (each.until ? when(each.until) : "goes on") },
      { head: html`<span class="mark hollow" aria-hidden="true"></span>slower, predicted`, label: "predicted", num: true, cell: (each) => (each.predicted === null ? NONE : `×${num(each.predicted)}`) },
      { head: html`<span class="mark" aria-hidden="true"></span>slower, measured`, label: "measured", num: true, cell: (each) => (each.measured === null ? NONE : `×${num(each.measured)}`) },
      { head: "lost to it", cell: (each) => (each.loss === null ? html`${NONE}${each.unmeasured ? html` <span class="quiet"><bdi>${each.unmeasured}</bdi></span>` : nothing}` : html`${percent(each.loss)}${each.loss_low === null ? nothing : html` <span class="quiet">(${percent(each.loss_low)} to ${percent(each.loss_high)})</span>`}`) },
      { head: "held back for it", num: true, cell: (each) => (each.held_s ? seconds(each.held_s) : "no") },
    ],
  }) : empty("No training shared GPU instances with it.")}`;

/** Those that its owner has excluded are counted. @param {any} why */
function places(why) {
  const others = why.places.filter((place) => place.refused === "pinned").length;
  if (!why.places.length) return empty("Nobody can say it now: no job scheduler answers.");
  return html`${table({
    caption: "GPU instances, and why each does not take it now", rows: why.places.filter((place) => place.refused !== "pinned"),
    columns: [
      { head: "GPU instance", cell: (place) => gpuLink(place.gpu) },
      { head: "takes it now", cell: (place) => (place.refused ? html`<b class="bad">${words(place.refused)}</b>` : html`<b class="good">yes</b>`) },
      { head: "in words", cell: (place) => html`<bdi>${place.gpu} ${place.message}</bdi>` },
    ],
  })}${others ? html`<p class="quiet">${count(others, "other")} ${others === 1 ? "is" : "are"} none of those to which it is pinned.</p>` : nothing}`;
}

const tries = (attempts, job) => (attempts.length ? table({
  caption: "Attempts", rows: attempts,
  columns: [
    { head: "attempt", num: true, cell: (each) => each.attempt },
    { head: "GPU instances", cell: (each) => joined(each.gpus, gpuLink) },
    { head: "start", cell: (each) => when(each.started_at, true) },
    { head: "came up after", num: true, cell: (each) => (each.up_at ? seconds((Date.parse(each.up_at) - Date.parse(each.started_at)) / 1000) : NONE) },
    { head: "end", cell: (each) => (each.ended_at ? when(each.ended_at, true) : "goes on") },
    { head: "iterations", num: true, cell: (each) => `${whole(each.iterations_from)} to ${whole(each.ended_at ? each.iterations : Math.max(each.iterations, job.iterations))}` },
    { head: "ended by", cell: (each) => (each.why ? html`${state(each.why)}${each.exit_code === null ? nothing : ` (${each.exit_code})`} <bdi>${each.message}</bdi>` : NONE) },
  ],
}) : empty("It has not been started yet."));

const decisions = (why) => (why.decisions.length ? table({
  caption: "Decisions of the job scheduler, the newest first", rows: why.decisions,
  columns: [
    { head: "when", cell: (each) => when(each.at, true) },
    { head: "decided", cell: (each) => words(each.kind) },
    { head: "GPU instances", cell: (each) => (each.gpus.length ? joined(each.gpus, gpuLink) : NONE) },
    { head: "why", cell: (each) => html`<bdi>${each.message || NONE}</bdi>` },
  ],
}) : empty("The job scheduler has decided nothing about it yet."));
