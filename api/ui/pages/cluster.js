/** What the GPU instances do now, and did in the last hours. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";
import { Charts } from "../core/chart.js";
import { NONE, ago, count, percent, seconds, when, whole } from "../core/format.js";
import { awaited, live } from "../core/live.js";
import { choice, empty, figure, gpuLink, interval, memoryBar, name, shown, table } from "../core/parts.js";
import { chips, facts, harm, lineOf, used, warmCounts } from "./gpu_facts.js";

/** Spans of the chart: seconds, and seconds of a step. @type {Record<string, [number, number]>} */
const SPANS = { "1h": [3600, 120], "6h": [21600, 300], "24h": [86400, 1200], "7d": [604800, 7200] };
/** Above so many GPU instances each gets a row in place of a tile. */
const TILES = 60;
const REFRESH_S = 60;
const SORTS = {
  name: (a, b) => a.id.localeCompare(b.id, "en", { numeric: true }),
  used: (a, b) => b.utilisation - a.utilisation,
  harm: (a, b) => harm(b) - harm(a),
  free: (a, b) => b.memory_total_mib - b.memory_used_mib - (a.memory_total_mib - a.memory_used_mib),
};

export function open(page) {
  const span = () => SPANS[page.query("span")] ?? SPANS["1h"];
  const series = (/** @type {[number, number]} */ [length, step]) => () =>
    page.get("/v1/gpus:series", { since: ago(length), step });
  const hour = page.load(series(SPANS["1h"]), REFRESH_S);
  const chosen = span() === SPANS["1h"] ? hour : page.load(series(span()), REFRESH_S);
  const midnight = new Date();
  midnight.setHours(0, 0, 0, 0);
  const harvest = page.load(() => page.get("/v1/harvest", { by: "project", step: "hour", since: midnight.toISOString() }), REFRESH_S);
  const chart = new Charts(page, [{ title: "Used, mean of all GPU instances", show: percent, most: 1, lines: (data) => {
      const means = (of) => data.at.map((_, i) => mean(Object.values(data.gpus).map((g) => g[of][i])));
      const all = means("used");
      const functions = means("functions");
      const rest = all.map((value, i) => (value === null ? null : Math.max(0, value - (functions[i] ?? 0))));
      // The larger area first: it is drawn below.
      return [
        { label: "functions", token: "functions", dash: [6, 4], values: functions, drawn: all, area: true },
        { label: "trainings and others", token: "training", values: rest, area: true },
      ];
  } }]);
  const view = () => {
    const rows = live.rows("gpus");
    if (!rows) return html`<h1>Cluster</h1>${awaited()}`;
    if (!rows.length) return html`<h1>Cluster</h1>${empty("No GPU instance has reported. This says why:", "smore doctor")}`;
    const sort = page.query("sort") || "name";
    const sorted = rows.toSorted(SORTS[sort] ?? SORTS.name);
    const form = page.query("form") || (rows.length > TILES ? "list" : "tiles");
    return html`
      <h1>Cluster</h1>
      <div class="figures">${figures(rows, harvest.data)}</div>
      <section>
        <h2>Used, mean of all GPU instances ${choice(page, "span", Object.keys(SPANS), page.query("span") || "1h", "Time")}</h2>
        ${shown(chosen, (data) => chart.view(data, (_, drawn) => drawn ?? empty("Nothing has been recorded in this time. The history is written by", "smore logs control")))}
      </section>
      <section>
        <h2>GPU instances ${choice(page, "sort", Object.keys(SORTS), sort, "Sort by", true)} ${choice(page, "form", ["tiles", "list"], form, "Form")}</h2>
        ${form === "list" ? list(sorted, hour.data) : nodes(sorted, hour.data)}
      </section>`;
  };
  return { title: "Cluster", topics: ["gpus", "queues", "trainings"], view, ready: () => live.settled("gpus") };
}
function mean(values) {
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => /** @type {number} */ (sum) + /** @type {number} */ (value), 0) / known.length : null;
}

function figures(rows, harvest) {
  const here = rows.filter((gpu) => !gpu.silent_since);
  const jobs = [...new Map(rows.flatMap((gpu) => gpu.jobs).map((job) => [job.id, job])).values()].filter((job) => job.loss_high != null);
  const worst = jobs.toSorted((a, b) => b.loss_high / b.budget - a.loss_high / a.budget)[0];
  const queues = live.rows("queues");
  const trainings = live.rows("trainings");
  const waiting = queues?.reduce((sum, queue) => sum + queue.depth, 0);
  const queued = trainings?.filter((job) => job.state === "queued");
  const next = queued?.map((job) => job.expected?.start_at).filter(Boolean).sort()[0];
  const silent = rows.length - here.length;
  return html`
    ${figure(here.length, html`GPU instance${here.length === 1 ? "" : "s"}${silent ? html`, <b class="bad">${silent} silent</b>` : nothing}`)}
    ${figure(percent(mean(here.map((gpu) => gpu.utilisation))), "used now")}
    ${figure(percent(mean(here.map((gpu) => gpu.function_utilisation))), "by functions now")}
    ${figure(harvest ? seconds(harvest.parts.reduce((sum, part) => sum + part.run_s, 0)) : NONE, "that functions ran today")}
    ${worst ? figure(`≤ ${percent(worst.loss_high)}`, html`lost at most (95 %), by <bdi>${worst.name || worst.id}</bdi>`) : figure(NONE, "lost by trainings: none is measured")}
    ${figure(waiting === undefined ? NONE : whole(waiting), "invocations wait")}
    ${figure(queued?.length ?? NONE, html`trainings wait${next ? html`, next ${when(next)}` : nothing}`)}`;
}

function nodes(rows, series) {
  const groups = Map.groupBy(rows, (gpu) => gpu.node ?? "");
  const inOrder = [...groups].sort(([a], [b]) => Number(!a) - Number(!b) || a.localeCompare(b, "en", { numeric: true }));
  return html`${inOrder.map(([node, gpus]) => html`
    ${groups.size > 1 ? html`<h3>${node ? name(node) : "Not reporting"} <span class="quiet">${count(gpus.length, "GPU instance")}</span></h3>` : nothing}
    <ul class="tiles">${repeat(gpus, (gpu) => gpu.id, (gpu) => tile(gpu, series?.gpus[gpu.id]))}</ul>`)}`;
}

const tile = (gpu, line) => html`
  <li class="tile ${gpu.silent_since ? "silent" : ""}">
    <h3>${gpuLink(gpu.id)} <b>${used(gpu)}</b></h3>
    <p class="quiet device"><bdi>${gpu.device || "–"}</bdi></p>
    ${lineOf(gpu, line)}
    <div class="rows">
      ${gpu.silent_since ? nothing : memoryBar(gpu)}
      ${gpu.jobs.map((job) => html`<span class="label ${job.guest ? "guest" : ""}" title=${job.guest ? "guest" : nothing}><bdi>${job.name || job.id}</bdi>${job.guest ? " (guest)" : ""}</span>
        ${interval(job)}<span class="value">${lossShort(job)}</span>`)}
    </div>
    ${chips(gpu)}
    ${facts(gpu)}
  </li>`;

const lossShort = (job) => (job.loss == null ? `? of ${percent(job.budget)}` : `${percent(job.loss)} of ${percent(job.budget)}`);

const list = (rows, series) => table({
  caption: "GPU instances",
  rows,
  mark: (gpu) => (gpu.silent_since ? "silent" : ""),
  columns: [
    { head: "GPU instance", cell: (gpu) => gpuLink(gpu.id) },
    { head: "used", num: true, cell: used },
    { head: "last hour", cell: (gpu) => lineOf(gpu, series?.gpus[gpu.id]) },
    { head: "memory", cell: (gpu) => (gpu.silent_since ? NONE : html`<div class="rows slim">${memoryBar(gpu, false)}</div>`) },
    { head: "trainings: lost of budget", cell: (gpu) => (gpu.jobs.length || gpu.trainings ? gpu.jobs.map((job) => html`<div class="rows slim"><span class="label"><bdi>${job.name || job.id}</bdi></span>${interval(job)}<span class="value">${lossShort(job)}</span></div>`) : NONE) },
    { head: "warm", cell: warmCounts },
    { head: "state", cell: facts },
  ],
});
