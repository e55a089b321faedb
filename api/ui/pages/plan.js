/** The plan: what ran on the GPU instances, what runs until when, what waits until when, and whether that may be believed. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { NONE, clock, count, seconds, when } from "../core/format.js";
import { Gantt } from "../core/gantt.js";
import { EVERY } from "../core/hub.js";
import { live } from "../core/live.js";
import { choice, empty, folded, gpuLinks, joined, link, name, shown, state, windowed } from "../core/parts.js";
import { barsOf, byGpu, byTraining } from "./plan_rows.js";
import { told } from "./told.js";

const HOUR_S = 3600;
const SPANS = { "1h": HOUR_S, "6h": 6 * HOUR_S, "12h": 12 * HOUR_S, "24h": 24 * HOUR_S, "7d": 168 * HOUR_S };
const AHEAD_S = SPANS["7d"];
const QUEUE_S = 5;
const ATTEMPTS_S = 30;
const MOST = 1000;
/** Days over which told and real ends are compared, and how many of them. */
const COMPARED_DAYS = 90;
const COMPARED = 200;
/** Below this width in pixels it is a list. */
const NARROW = 600;

export function open(page) {
  const since = () => moment(page.query("since") || "12h", -1);
  const ask = (from) => page.get("/v1/jobs/attempts", { ...page.whose, since: iso(from), limit: MOST });
  let asked = null;
  const past = page.load(() => (asked = ask(Date.now() / 1000 - COMPARED_DAYS * 24 * HOUR_S)));
  const attempts = page.load(async () => {
    // At first those of the plan are among them, if all came.
    const all = await asked?.catch(() => null);
    asked = null;
    return all && !all.more ? all : ask(since());
  }, ATTEMPTS_S);
  const plan = page.load(() => page.get("/v1/jobs/queue"), QUEUE_S);
  const chart = new Gantt("Plan of the GPU instances");
  const listing = { open: false };
  addEventListener("resize", page.draw, { signal: page.signal });
  const view = () => html`
    <h1>Plan</h1>
    <p class="choices">${width() < NARROW ? nothing : choice(page, "by", ["GPU instances", "trainings"], page.query("by") || "GPU instances", "Rows", true)}
      ${choice(page, "since", Object.keys(SPANS), page.query("since") || "12h", "Back", true)}
      ${choice(page, "until", ["all", ...Object.keys(SPANS)], page.query("until") || "all", "Ahead", true)}</p>
    ${shown(plan, (queue) => shown(attempts, (ran) => drawn(page, chart, listing, queue, ran, since())))}
    <section><h2>Told and real ends</h2>${shown(past, (data) => told(data.attempts.filter((each) => each.why === "succeeded" && each.told_s).slice(0, COMPARED)))}</section>`;
  return { title: "Plan", topics: ["gpus"], view, ready: () => live.settled("gpus") };
}

/** A moment of the address, or a span before (`way` -1) or after now; seconds since 1970. @param {string} text @param {number} way */
const moment = (text, way) => (SPANS[text] ? Date.now() / 1000 + way * SPANS[text] : Date.parse(text) / 1000 || Date.now() / 1000 + way * SPANS["12h"]);
/** Of the drawing, in pixels. */
const width = () => Math.min(1600, document.documentElement.clientWidth) - 32;
const iso = (s) => new Date(s * 1000).toISOString();

/** @param {import("../core/page.js").Page} page @param {Gantt} chart @param {{open: boolean}} listing whether the table is open @param {any} queue @param {any} ran @param {number} since */
function drawn(page, chart, listing, queue, ran, since) {
  const now = Date.now() / 1000;
  const project = page.project ?? page.me.project;
  const jobs = queue.jobs.filter((job) => project === EVERY || job.project === project);
  const meanwhile = ran.attempts.filter((each) => !each.ended_at || Date.parse(each.ended_at) >= since * 1000);
  const bars = barsOf(meanwhile, jobs, since, page.me);
  const ends = bars.map((bar) => Math.max(bar.to ?? 0, bar.late ?? 0)).filter((s) => s < now + AHEAD_S);
  const ahead = page.query("until");
  const until = ahead && ahead !== "all" ? moment(ahead, 1) : Math.max(now + HOUR_S, ...ends) + (now - since) / 50;
  const first = queue.jobs.find((job) => job.id === queue.kept_for);
  const unknown = jobs.filter((job) => job.place > 0 && !job.start_at);
  const listed = bars.filter((bar) => (bar.to ?? until) >= since && bar.from <= until);
  return html`
    ${queue.leading ? nothing : html`<p class="problem" role="status"><b>No job scheduler leads</b>${queue.refused ? html`: <bdi>${queue.refused}</bdi>` : nothing}. ${queue.at ? html`This is its last plan, of ${when(queue.at)}, ${seconds(now - Date.parse(queue.at) / 1000)} ago.` : "It has published no plan."}</p>`}
    <div class=${queue.leading ? "" : "out-of-date"}>
    ${!bars.length ? empty("No training ran in this time, and none waits. This starts one:", "smore jobs start --name NAME -- zoo.train")
      : html`<p class="quiet">${count(jobs.filter((job) => job.place === 0).length, "training")} on GPU instances, ${count(jobs.filter((job) => job.place > 0).length, "training")} waiting${queue.kept ? html`, ${count(queue.kept, "GPU instance")} kept for ${first ? name(first.name) : jobs.some((job) => job.why === "promised") ? "promised ends" : "the first of another project"}` : nothing}. ${ran.more ? `Only the newest ${MOST} attempts are shown.` : nothing}</p>
        ${width() < NARROW ? list(listed, page, true) : html`
          ${chart.view({ rows: page.query("by") === "trainings" ? byTraining(listed) : byGpu(listed, live.rows("gpus") ?? [], now), since, until, now, width: width() })}
          ${legend}
          ${folded(listing, page, () => list(listed, page))}`}
        ${unknown.length ? html`<p class="quiet">Nobody can say when these start: ${joined(unknown, (job) => html`${name(job.name)}`)}.</p>` : nothing}`}
    </div>`;
}

const legend = html`<ul class="legend">
  ${[["past", "was there (✕ failed)"], ["now", "is there, to its expected end"], ["waits", "waits: from its expected start to its end"], ["guest-bar now", "guest of the training above"]].map(([kind, words]) => html`<li><svg class="wide" viewBox="0 0 26 12" aria-hidden="true"><g class=${kind}><rect class="body" x="1" y="1" width="24" height="10" rx="2" /></g></svg> ${words}</li>`)}
  <li><svg class="wide" viewBox="0 0 26 12" aria-hidden="true"><line class="late" x1="0" x2="26" y1="6" y2="6" /></svg> one case in ten ends later than this line</li>
  <li><svg class="wide" viewBox="0 0 26 12" aria-hidden="true"><line class="now" x1="13" x2="13" y1="0" y2="12" /></svg> now</li>
</ul>`;

/** What goes on and waits in the order of its start, then what is over. @param {import("./plan_rows.js").PlanBar[]} bars @param {import("../core/page.js").Page} page @param {boolean} [short] */
const list = (bars, page, short = false) => windowed(page, {
  caption: "Plan by start",
  rows: [...bars.filter((bar) => bar.kind !== "past"), ...bars.filter((bar) => bar.kind === "past").reverse()],
  columns: [
    { head: "training", cell: (bar) => html`${link(bar.href, name(page.project === EVERY ? `${bar.project}/${bar.name}` : bar.name))}${bar.guest ? html` <span class="guest">guest</span>` : nothing} ${state(bar.state)}` },
    { head: "start", cell: (bar) => html`${bar.startsAt ? when(bar.startsAt) : NONE}${bar.startLate && bar.startLate > bar.from + 60 ? html`<span class="quiet">..${clock(new Date(bar.startLate * 1000))}</span>` : nothing}` },
    { head: "end", cell: (bar) => html`${bar.to === null ? NONE : clock(new Date(bar.to * 1000))}${bar.late && bar.late > (bar.to ?? 0) + 60 ? html`<span class="quiet">..${clock(new Date(bar.late * 1000))}</span>` : nothing}` },
    ...(short ? [] : [
      { head: "GPU instances", cell: (bar) => gpuLinks(bar.gpus) },
      { head: "why", cell: (bar) => (bar.why ? html`<bdi>${bar.why}</bdi>` : NONE) },
    ]),
  ],
});
