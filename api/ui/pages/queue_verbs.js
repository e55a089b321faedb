/** What people may do with a queue and with the platform. */

import { call, path } from "../core/api.js";
import { count, whole } from "../core/format.js";
import { named } from "../core/hub.js";
import { live } from "../core/live.js";

const FOR = { name: "for_s", label: "For how many seconds", type: "number", min: 1, hint: "Empty: until it is taken back." };
const some = (text) => (text === "" ? null : Number(text));

export function queueVerbs(page, row) {
  if (!page.may("admin")) return [];
  const of = row.function;
  const query = { project: row.project };
  const ask = (method, verb, /** @type {any} */ body = undefined) => () => call(method, path`/v1/queues/${of}/` + verb, { query, body });
  const act = (task, done, /** @type {any} */ undo = undefined) => page.act(named("queues", row), task, { done: () => done, undo });
  const verbs = [
    row.paused || row.draining
      ? { label: "Resume", hint: "ends a pause and a drain", run: () => act(ask("POST", "resume"), `${of} goes on.`, ask("POST", row.draining ? "drain" : "pause")) }
      : { label: "Pause", hint: "nothing is dispatched; deadlines run on", run: () => act(ask("POST", "pause"), `${of} is paused.`, ask("POST", "resume")) },
  ];
  if (!row.draining) verbs.push({ label: "Drain", hint: "takes nothing new; what waits is served", run: () => act(ask("POST", "drain"), `${of} drains.`, ask("POST", "resume")) });
  verbs.push({ label: "Purge…", hint: "cancels everything that waits", run: async () => {
    const sure = await page.ask({ title: `Purge ${of}`, action: "Purge", danger: true, text: `This cancels the invocations of ${of} that wait: ${whole(row.depth)} at the last look. Running ones go on. It cannot be taken back.` });
    if (sure) page.act(named("queues", row), ask("POST", "purge"), { done: (answer) => `${count(answer.cancelled, "invocation")} of ${of} cancelled.` });
  } });
  // A deadline is set in the project of the session alone.
  if (row.project === page.me.project) verbs.push({ label: "Deadline…", hint: "from arrival, for all revisions", run: async () => {
    const given = await page.ask({ title: `Deadline of ${of}`, action: "Set", fields: [{ name: "ms", label: "Milliseconds from arrival", type: "number", min: 1, max: 86_400_000, value: String(row.deadline_ms ?? ""), hint: "Empty: the revision's own." }] });
    const set = (deadline_ms) => () => call("PUT", path`/v1/functions/${of}/slo`, { body: { deadline_ms } });
    if (given) act(set(some(given.ms)), given.ms ? `The deadline of ${of} is ${given.ms} ms.` : `${of} has its revision's own deadline.`, row.deadline_ms == null ? undefined : set(row.deadline_ms));
  } });
  if (page.me.operator) verbs.push(
    { label: "Boost…", hint: `multiplies its priority${row.boost === 1 ? "" : `, now ×${row.boost}`}`, run: async () => {
      const given = await page.ask({ title: `Boost ${of}`, action: "Boost", fields: [{ name: "factor", label: "Factor", type: "number", min: 0.001, max: 1000, step: "any", value: "2", required: true }, FOR] });
      if (given) act(ask("PUT", "boost", { factor: Number(given.factor), for_s: some(given.for_s) }), `The priority of ${of} is multiplied by ${given.factor}.`, ask("DELETE", "boost"));
    } },
    { label: "Pin…", hint: "only these GPU instances may run it", run: async () => {
      const { gpus } = await call("GET", "/v1/gpus").catch((error) => (page.errors.set(named("queues", row), error), page.draw(), { gpus: [] }));
      if (!gpus.length) return;
      const given = await page.ask({ title: `Pin ${of}`, action: "Pin", fields: [{ name: "gpus", label: "GPU instances", options: gpus.map((gpu) => gpu.id) }, FOR] });
      if (given?.gpus.length) act(ask("PUT", "pin", { gpus: given.gpus, for_s: some(given.for_s) }), `${of} is pinned to ${given.gpus.join(", ")}.`, ask("DELETE", "pin"));
    } },
  );
  if (page.me.operator && row.boost !== 1) verbs.push({ label: "End the boost", hint: "", run: () => act(ask("DELETE", "boost"), `The boost of ${of} has ended.`) });
  if (page.me.operator && row.pinned_to.length) verbs.push({ label: "End the pin", hint: "", run: () => act(ask("DELETE", "pin"), `The pin of ${of} has ended.`) });
  return verbs;
}

export function platformVerbs(page) {
  if (!(page.me.operator && page.may("admin"))) return [];
  const ask = (verb) => (query = {}) => call("POST", `/v1/queues/${verb}`, { query });
  const confirmed = (verb, text, done) => async () => {
    const waiting = (live.rows("queues") ?? []).reduce((sum, row) => sum + row.depth, 0);
    const sure = await page.ask({ title: `${verb === "pause" ? "Pause" : "Drain"} the platform`, action: verb === "pause" ? "Pause" : "Drain", word: verb, danger: true, text: `${text} ${count(waiting, "invocation")} of this project wait now.` });
    if (sure) page.act("platform", ask(verb), { done: () => done, undo: ask("resume") });
  };
  return [
    { label: "Pause…", danger: true, run: confirmed("pause", "Nothing of any project is dispatched until somebody resumes it. Invocations are accepted, and their deadlines run.", "The platform is paused.") },
    { label: "Drain…", danger: true, run: confirmed("drain", "No new invocation of any project is accepted until somebody resumes it. Those that wait are served.", "The platform drains.") },
    { label: "Resume", danger: false, run: () => page.act("platform", ask("resume"), { done: () => "The platform goes on." }) },
  ];
}
