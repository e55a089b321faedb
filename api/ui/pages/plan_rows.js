/** The rows of the plan: what ran, what runs until when, and what is expected to wait until when. */

import { path } from "../core/api.js";
import { clock, count, seconds } from "../core/format.js";
import { inProject } from "../core/parts.js";

/** @typedef {import("../core/gantt.js").Bar & {gpus: string[], state: string, why: string, project: string, startsAt: string|null, row: string}} PlanBar */

/** Seconds since 1970. @param {string|null|undefined} iso */
const at = (iso) => (iso ? Date.parse(iso) / 1000 : null);
const natural = new Intl.Collator("en", { numeric: true }).compare;
const time = (s) => (s === null ? "nobody can say when" : clock(new Date(s * 1000)));
/** `14:55..15:05`. @param {number|null} early @param {number|null} late */
const span = (early, late) => (early !== null && late !== null && late > early + 60 ? `${time(early)}..${time(late)}` : time(early));

/** The address of a training. @param {{id: string, project: string}} job @param {any} me */
export const trainingHref = (job, me) => inProject(path`/ui/trainings/${job.id}`, job.project, me);

/** Attempts and the queue as bars; of a job that is over, on GPU instances, or waits.
 * @param {any[]} attempts @param {any[]} queue @param {number} since seconds since 1970 @param {any} me @returns {PlanBar[]} */
export function barsOf(attempts, queue, since, me) {
  const expected = new Map(queue.map((job) => [job.id, job]));
  const begun = new Set();
  /** @type {any[]} */
  const bars = attempts.map((each) => {
    const on = each.ended_at ? null : expected.get(each.job);
    if (!each.ended_at) begun.add(each.job);
    const from = /** @type {number} */ (at(each.started_at));
    const to = each.ended_at ? at(each.ended_at) : at(on?.end_at);
    const late = each.ended_at ? null : at(on?.end_late_at);
    const said = each.ended_at
      ? `${time(from)} to ${time(to)}, ${each.why || "over"}${each.message ? `: ${each.message}` : ""}`
      : `since ${time(from)}, ends ${span(to, late)}. ${on?.message ?? ""}`;
    return {
      ...of(each.job, each.name, each.project, each.gpus, each.guest, me),
      id: `${each.job}/${each.attempt}`, kind: each.ended_at ? "past" : "now", bad: ["failed", "lost", "outgrown"].includes(each.why),
      from, to, late, startLate: null, startsAt: each.started_at, state: each.ended_at ? each.why || "ended" : "running", why: each.message || on?.message || "",
      words: `${each.name} on ${each.gpus.join(", ")}${each.guest ? " as a guest" : ""}: ${said}`,
    };
  });
  for (const job of queue) {
    if (begun.has(job.id) || (job.place > 0 && !job.start_at)) continue;
    const waits = job.place > 0;
    const from = waits ? /** @type {number} */ (at(job.start_at)) : since;
    const [to, late, startLate] = [at(job.end_at), at(job.end_late_at), at(job.start_late_at)];
    bars.push({
      ...of(job.id, job.name, job.project, job.gpus, job.guest, me),
      id: `${job.id}/next`, row: `${job.place}. ${job.name}`, kind: waits ? "waits" : "now", bad: false, from, to, late, startLate: waits ? startLate : null, startsAt: job.start_at, state: job.state, why: job.message,
      words: waits
        ? `${job.name}, place ${job.place}, on ${job.gpus.join(", ") || "some GPU instance"}: starts ${span(from, startLate)}, ends ${span(to, late)} (length ${seconds(job.length_s)}, ${job.source}). ${job.message}`
        : `${job.name} on ${job.gpus.join(", ")}: ends ${span(to, late)}. ${job.message}`,
    });
  }
  return bars.sort((a, b) => a.from - b.from);
}

const of = (id, name, project, gpus, guest, me) => ({ job: id, name: name || id, project, gpus, guest, rows: 1, row: "", href: trainingHref({ id, project }, me) });

/** A row each GPU instance. A job over several that stand together is one bar over their rows.
 * One that waits has a row of its own: the plan does not say which GPU instance it gets.
 * @param {PlanBar[]} bars @param {any[]} gpus live rows @param {number} now @returns {import("../core/gantt.js").Row[]} */
export function byGpu(bars, gpus, now) {
  // Those of a host stand together, as those of a training over several do.
  const host = new Map(gpus.map((gpu) => [gpu.id, gpu.node]));
  const placed = (name) => `${host.get(name) ?? ""} ${name}`;
  const names = [...new Set([...host.keys(), ...bars.flatMap((bar) => bar.gpus)])].sort((a, b) => natural(placed(a), placed(b)));
  const place = new Map(names.map((name, i) => [name, i]));
  const rows = names.map((name) => ({ key: name, name, href: path`/ui/gpus/${name}`, bars: /** @type {any[]} */ ([]) }));
  for (const bar of bars) {
    const on = bar.gpus.map((gpu) => /** @type {number} */ (place.get(gpu))).sort((a, b) => a - b);
    for (let i = 0, n = 1; i < on.length; i += n) {
      // A guest's lane is of one row.
      for (n = 1; !bar.guest && on[i + n] === on[i] + n; ) n += 1;
      rows[on[i]].bars.push({ ...bar, id: i ? `${bar.id}/${i}` : bar.id, rows: n });
    }
  }
  for (const gpu of gpus) {
    const others = gpu.trainings - gpu.jobs.length;
    const row = rows[/** @type {number} */ (place.get(gpu.id))];
    if (others > 0) row.bars.push({ id: `${gpu.id}/others`, job: "", name: "another project's", kind: "other", guest: row.bars.some((bar) => bar.kind === "now"), bad: false, from: now, to: null, late: null, startLate: null, words: `${count(others, "training")} of another project on ${gpu.id}, until nobody can say when`, href: row.href, rows: 1 });
  }
  return [...rows, ...bars.filter((bar) => !bar.gpus.length).map((bar) => ({ key: bar.id, name: bar.row, href: bar.href, bars: [bar] }))];
}

/** A row each training, in the order of their starts. @param {PlanBar[]} bars @returns {import("../core/gantt.js").Row[]} */
export const byTraining = (bars) => [...Map.groupBy(bars, (bar) => bar.job).values()].map((mine) => ({ key: mine[0].job, name: mine[0].name, href: mine[0].href, bars: mine.map((bar) => ({ ...bar, guest: false })) }));
