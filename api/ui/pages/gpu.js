/** One GPU instance: its hours, who is there, and what operators can do with it. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { Problem, call, path } from "../core/api.js";
import { Charts } from "../core/chart.js";
import { SPANS, ago, count, memory, memoryOf, percent, seconds, when, whole } from "../core/format.js";
import { awaited, live } from "../core/live.js";
import { choice, empty, errorRow, failed, figure, interval, lacking, link, lossWords, name, shown, state, table } from "../core/parts.js";
import { facts, used } from "./gpu_facts.js";
import { lanesThere } from "./gpu_lanes.js";
import { trainingHref } from "./plan_rows.js";

const REFRESH_S = 60;
const POINTS = 300;
/** Pixels left of the charts and lanes, which share an axis of time. */
const NAMES = 110;

export function open(page) {
  const [id] = page.params;
  const length = SPANS[page.query("span")] ?? SPANS["1h"];
  const since = () => ago(length);
  const ask = (where, query) => () => page.get(where, { since: since(), ...query });
  const series = page.load(ask("/v1/gpus:series", { gpu: id, step: Math.max(length <= 3600 ? 12 : 60, length / POINTS) }), REFRESH_S);
  const attempts = page.load(ask("/v1/jobs/attempts", page.whose), REFRESH_S);
  const lanes = page.load(ask(path`/v1/gpus/${id}/lanes`, page.whose), REFRESH_S);
  const charts = new Charts(page, [
    { title: "Used", show: percent, most: 1, left: NAMES, lines: ({ gpus }) => [
      { label: "used", token: "training", values: gpus[id].used, area: true },
      { label: "by functions", token: "functions", dash: [6, 4], values: gpus[id].functions },
    ] },
    { title: "Memory", show: memory, left: NAMES, lines: ({ gpus }) => [{ label: "memory", token: "rest", values: gpus[id].memory_mib, area: true }] },
  ]);
  const plots = (data) => (data.gpus[id] && data.at.length ? html`${charts.view(data, (title, chart) => html`<h3>${title}</h3>${chart}`)}
    <h3>What was there</h3>${shown(attempts, ({ attempts: ran }) => shown(lanes, (of) => lanesThere(page, ran.filter((each) => each.gpus.includes(id)), of, data.at[0], data.at.at(-1))))}`
    : empty("Nothing has been recorded of it in this time."));
  const view = () => {
    const rows = live.rows("gpus");
    if (!rows) return html`<h1>${name(id)}</h1>${awaited()}`;
    const gpu = rows.find((each) => each.id === id);
    return html`
      <p class="crumbs"><a href="/ui/">Cluster</a></p>
      <h1>${name(id)}</h1>
      ${gpu ? html`${gpu.silent_since ? facts(gpu) : now(gpu)}${actions(page, gpu)}` : series.error?.status === 404 ? nothing : failed(new Problem({ code: "not_found", detail: `No GPU instance ${id} reports now. What was recorded of it stands below.` }))}
      <section><h2>Over time ${choice(page, "span", Object.keys(SPANS), page.query("span") || "1h", "Time")}</h2>
        ${shown(series, plots)}</section>
      ${gpu && !gpu.silent_since ? html`<section><h2>Trainings now</h2>${trainings(page, gpu)}</section>
        <section><h2>Warm instances</h2>${warm(gpu)}</section>
        <section><h2>Processes nobody registered</h2>${strangers(page, gpu)}</section>` : nothing}`;
  };
  return { title: id, topics: ["gpus"], view, ready: () => live.settled("gpus") };
}

const now = (gpu) => html`
  <p class="quiet"><bdi>${gpu.device}</bdi>, ${gpu.sharing_mode}${gpu.node ? html`, on ${name(gpu.node)}` : nothing}, reported ${when(gpu.reported_at, true)}</p>
  ${facts(gpu)}
  <div class="figures">
    ${figure(used(gpu), html`used now <span class="quiet">(${gpu.utilisation_counter})</span>`)}
    ${figure(percent(gpu.function_utilisation), "by functions now")}
    ${figure(memoryOf(gpu.memory_used_mib, gpu.memory_total_mib), "memory, reserved for trainings or used by functions")}
    ${figure(`${gpu.running} of ${gpu.slots}`, "batches run")}
  </div>`;

function actions(page, gpu) {
  // The operators' project.
  if (!page.me.operator) return page.me.project === "default" ? html`<p>${lacking(page, "admin")}</p>` : nothing;
  const post = (verb) => (query = {}) => call("POST", path`/v1/gpus/${gpu.id}/${verb}`, { query });
  const button = (label, run, danger = false) =>
    html`<button class=${danger ? "danger" : ""} ?disabled=${page.off(gpu.id)} @click=${run}>${label}</button>`;
  const drain = async () => {
    const sure = await page.ask({ title: `Drain ${gpu.id}`, action: "Drain", text: "Nothing more is placed there, and idle instances are unloaded. What runs goes on, and nothing is ended: trainings stay until they end." });
    if (sure) page.act(gpu.id, post("drain"), { done: () => `${gpu.id} drains.`, undo: post("resume") });
  };
  return html`<div class="buttons start">
    ${gpu.silent_since
      ? button("Forget", () => page.act(gpu.id, post("forget"), { done: () => `${gpu.id} is not expected any more.` }))
      : html`${gpu.paused || gpu.draining
          ? button("Resume", () => page.act(gpu.id, post("resume"), { done: () => `${gpu.id} goes on.`, undo: post(gpu.draining ? "drain" : "pause") }))
          : button("Pause", () => page.act(gpu.id, post("pause"), { done: () => `${gpu.id} is paused.`, undo: post("resume") }))}
        ${gpu.draining ? nothing : button("Drain…", drain)}`}
  </div>${page.errors.has(gpu.id) ? failed(page.errors.get(gpu.id)) : nothing}`;
}

function trainings(page, gpu) {
  const others = gpu.trainings - gpu.jobs.length;
  const note = others > 0 ? html`<p class="quiet">${others} of another project ${others === 1 ? "is" : "are"} there too.</p>` : nothing;
  if (!gpu.jobs.length) return others > 0 ? note : empty("No training is there. This starts one:", "smore jobs start --name NAME -- zoo.train");
  return html`${table({
    caption: "Trainings now",
    rows: gpu.jobs,
    columns: [
      { head: "training", cell: (job) => html`${link(trainingHref(job, page.me), name(job.name || job.id))}${job.guest ? html` <span class="guest">guest</span>` : nothing}` },
      { head: "project", cell: (job) => name(job.project) },
      { head: "iterations", num: true, cell: (job) => whole(job.iterations) },
      { head: "lost to functions, of budget", cell: (job) => html`<div class="rows slim">${interval(job)}<span class="value">${lossWords(job)}, ${count(job.loss_windows, "window")}</span></div>` },
      { head: "held back", cell: (job) => (job.held < 1 ? `runs ${percent(job.held)} of the time` : "no") },
    ],
  })}${note}`;
}

const warm = (gpu) => gpu.warm.length
  ? table({
      caption: "Warm instances",
      rows: gpu.warm,
      columns: [
        { head: "function", cell: (each) => html`${link(path`/ui/functions/${each.function}`, name(each.function))}` },
        { head: "revision", num: true, cell: (each) => each.revision },
        { head: "state", cell: (each) => state(each.state) },
        { head: "memory", num: true, cell: (each) => memory(each.memory_mib) },
        { head: "last run ended", num: true, cell: (each) => (each.state === "idle" ? `${seconds(each.idle_s)} ago` : "–") },
      ],
    })
  : empty("No function of this project is loaded there. This loads one:", "smore functions warm NAME");

function strangers(page, gpu) {
  if (gpu.strangers === null) return empty("It cannot be told who else computes there: this is a CPU partition.");
  if (!gpu.strangers.length) return empty("None: every process there is a training or a function of the platform.");
  const may = page.me.operator && page.may("admin");
  const key = (each) => `${gpu.id}/${each.pid}`;
  const set = (each, verb) => () => call("POST", path`/v1/gpus/${gpu.id}/${verb}`, { body: { pid: each.pid } });
  return table({
    caption: "Processes nobody registered",
    rows: gpu.strangers,
    key: (each) => each.pid,
    after: (each) => errorRow(page.errors.get(key(each)), 5),
    columns: [
      { head: "process", num: true, cell: (each) => each.pid },
      { head: "program", cell: (each) => html`<bdi class="mono">${each.name || "not known"}</bdi>` },
      { head: "memory", num: true, cell: (each) => memory(each.memory_mib) },
      { head: "functions beside it", cell: (each) => (each.allowed ? "allowed" : html`<b class="bad">none</b> until it is allowed`) },
      { head: html`<span class="hidden">action</span>`, label: "action", cell: (each) => (!may ? nothing : each.allowed
          ? html`<button ?disabled=${page.off(key(each))} @click=${() => page.act(key(each), set(each, "protect"), { done: () => `Nothing runs beside process ${each.pid} any more.`, undo: set(each, "allow") })}>Protect</button>`
          : html`<button ?disabled=${page.off(key(each))} @click=${() => page.act(key(each), set(each, "allow"), { done: () => `Functions may run beside process ${each.pid}.`, undo: set(each, "protect") })}>Allow</button>`) },
    ],
  });
}
