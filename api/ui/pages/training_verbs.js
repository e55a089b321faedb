/** What people may do with a training. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { call, path } from "../core/api.js";
import { menu } from "../core/dialog.js";
import { count, percent, whole } from "../core/format.js";

export const OVER = new Set(["ended", "lost"]);
export const WAITING = new Set(["queued", "held"]);

/** @param {import("../core/page.js").Page} page @param {any} job @returns {{label: string, hint: string, danger?: boolean, run: () => any}[]} */
export function trainingVerbs(page, job) {
  const query = { project: job.project && job.project !== page.me.project ? job.project : null };
  const ask = (verb, /** @type {any} */ body = undefined) => (more = {}) => call("POST", path`/v1/jobs/${job.id}/` + verb, { query: { ...query, ...more }, body });
  const act = (task, done, /** @type {any} */ undo = undefined) => page.act(job.id, task, { done: () => done, undo });
  const verbs = [];
  if (page.may("jobs")) {
    if (job.state === "queued") verbs.push({ label: "Hold", hint: "it is not started until it is released", run: () => act(ask("hold"), `${job.name} is held.`, ask("release")) });
    if (job.state === "held") verbs.push({ label: "Release", hint: "it waits for its turn again", run: () => act(ask("release"), `${job.name} waits for its turn.`, ask("hold")) });
    if (OVER.has(job.state) && job.source === "started") verbs.push({ label: "Restart", hint: job.checkpoint ? `from iteration ${job.checkpoint}, its last checkpoint` : "from the beginning: it has written no checkpoint", run: () => act(ask("restart"), `${job.name} waits for another attempt.`) });
    if (!OVER.has(job.state)) verbs.push({ label: "Stop…", hint: WAITING.has(job.state) ? "it ends without a start" : `SIGTERM, after ${job.grace_s} s SIGKILL`, danger: true, run: async () => {
      const text = WAITING.has(job.state) ? "It waits, and ends at once." : job.source === "started" ? `It gets SIGTERM, and SIGKILL after ${job.grace_s} s. It has done ${count(job.iterations, "iteration")}; ${job.checkpoint ? `its last checkpoint holds ${whole(job.checkpoint)}` : "it has written no checkpoint"}.` : "It runs elsewhere and trains on; the platform watches it no longer.";
      const sure = await page.ask({ title: `Stop ${job.name}`, action: "Stop", danger: true, text });
      if (sure) act(ask("stop"), `${job.name} stops.`);
    } });
  }
  if (page.me.operator && page.may("admin") && WAITING.has(job.state)) verbs.push({ label: "First", hint: "before all others that wait", run: () => act(ask("move", { first: true }), `${job.name} is before all others that wait.`) });
  // A budget is set in the project of the session alone.
  if (page.may("admin") && !OVER.has(job.state) && !query.project) verbs.push({ label: "Budget…", hint: `now ${percent(job.budget)} of its iteration time`, run: async () => {
    const given = await page.ask({ title: `Budget of ${job.name}`, action: "Set", text: "What it has saved or lost so far is not carried over.", fields: [{ name: "percent", label: "Per cent of its iteration time that functions may cost it", type: "number", min: 1, max: 1900, step: "any", required: true, value: String(Number((100 * job.budget).toPrecision(12))) }] });
    const set = (budget) => () => call("PUT", path`/v1/jobs/${job.id}/slo`, { body: { budget } });
    if (given) act(set(Number(given.percent) / 100), `${job.name} may lose ${given.percent} %.`, set(job.budget));
  } });
  return verbs;
}

/** The actions of a row. @param {import("../core/page.js").Page} page @param {any} job */
export function trainingButtons(page, job) {
  const verbs = trainingVerbs(page, job);
  return verbs.length ? html`<button aria-label="Actions of ${job.name}" ?disabled=${page.off(job.id)} @click=${() => menu(job.name, verbs)}>Actions</button>` : nothing;
}
