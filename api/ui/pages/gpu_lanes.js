/** What was on a GPU instance, lane by lane: trainings, warm instances, closed windows, budgets, invocations. */

import { path } from "../core/api.js";
import { count, percent, words } from "../core/format.js";
import { lanesOf, spansOf } from "../core/lanes.js";
import { inProject } from "../core/parts.js";
import { trainingHref } from "./plan_rows.js";

/** Trainings and functions that get a lane of their own: the newest, and those that were there longest. */
const MOST = 12;

/** @param {import("../core/page.js").Page} page @param {any[]} attempts there @param {any} lanes @param {number} since @param {number} until */
export function lanesThere(page, attempts, lanes, since, until) {
  const trainings = [...Map.groupBy(attempts, (each) => each.job).values()].slice(0, MOST).map((of) => ({
    name: of[0].name,
    kind: of[0].guest ? /** @type {const} */ ("guest") : /** @type {const} */ ("training"),
    href: trainingHref({ id: of[0].job, project: of[0].project }, page.me),
    spans: of.toReversed().map((each) => ({
      from: Date.parse(each.started_at) / 1000,
      to: each.ended_at ? Date.parse(each.ended_at) / 1000 : Infinity,
      words: `attempt ${each.attempt}${each.guest ? ", as a guest" : ""}${each.why ? `, ${words(each.why)}` : ", goes on"}`,
    })),
  }));
  const long = (lives) => lives.reduce((sum, life) => sum + Math.min(until, life.until ?? until) - Math.max(since, life.since), 0);
  const functions = [...Map.groupBy(lanes.warm, (life) => (life.project === page.me.project ? life.function : `${life.project}/${life.function}`))]
    .sort(([, a], [, b]) => long(b) - long(a)).map(([name, lives]) => ({
      name,
      kind: /** @type {const} */ ("functions"),
      href: inProject(path`/ui/functions/${lives[0].function}`, lives[0].project, page.me),
      spans: lives.toReversed().map((life) => ({ from: life.since, to: life.until ?? Infinity, words: life.until ? "warm instances" : "warm instances, one is there" })),
    }));
  return lanesOf([
    ...trainings,
    { name: "closed windows", kind: "rest", spans: spansOf(lanes, lanes.closed, (share) => `${percent(share)} of the time closed to functions`) },
    { name: "budget steps", kind: "rest", spans: spansOf(lanes, lanes.duty, (duty) => `functions may work ${percent(duty)} of the time`) },
    { name: "invocations", kind: "functions", spans: spansOf(lanes, lanes.ended, (n) => `${count(n, "invocation")} ended in ${lanes.step_s / 60} min`) },
    ...functions.slice(0, MOST),
  ], since, until);
}
