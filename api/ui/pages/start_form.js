/** The form that starts a training, and says on every change what would become of it. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { call } from "../core/api.js";
import { seconds, when, words } from "../core/format.js";
import { failed, gpuLink, joined } from "../core/parts.js";
import { DryRun } from "./dry_run.js";

export function startForm(page) {
  let opened = false;
  const trial = new DryRun((body, signal) => call("POST", "/v1/jobs:dryRun", { body, signal }), page);
  const changed = (event) => {
    const body = bodyOf(event.currentTarget);
    if (body) trial.ask(body);
    else trial.stop();
    page.draw();
  };
  const submit = async (event) => {
    event.preventDefault();
    const form = event.currentTarget;
    const body = bodyOf(form);
    if (!body) return;
    await page.act("start", () => call("POST", "/v1/jobs", { body }), { done: (job) => `${job.name} is ${job.state === "queued" ? "waiting" : job.state}.` });
    if (!page.errors.has("start")) form.reset(), trial.stop();
  };
  return () => html`
    <details class="start" ?open=${opened} @toggle=${(e) => (opened = e.target.open)}>
      <summary class="button">Start a training</summary>
      <form @input=${changed} @submit=${submit} autocomplete="off">
        <div class="fields">
          ${FIELDS.map((f) => html`<label class=${f.wide ? "wide" : ""}>${f.label}
            <input name=${f.name} type=${f.type ?? "text"} min=${f.min ?? nothing} max=${f.max ?? nothing} step=${f.step ?? nothing} ?required=${f.required} placeholder=${f.example ?? ""}>
            ${f.hint ? html`<span class="quiet">${f.hint}</span>` : nothing}</label>`)}
        </div>
        <div aria-live="polite" class="outcome">${outcome(trial)}</div>
        ${page.errors.has("start") ? failed(labelled(page.errors.get("start"))) : nothing}
        <div class="buttons start"><button class="primary" ?disabled=${page.off("start")}>Start</button></div>
      </form>
    </details>`;
}

const FIELDS = [
  { name: "name", label: "Name", required: true, example: "bert-ft" },
  { name: "argv", label: "Entry point and arguments", required: true, wide: true, example: "zoo.train --model bert --iterations 5000" },
  { name: "count", label: "GPU instances", type: "number", min: 1, max: 1024, example: "1" },
  { name: "device", label: "Kind of GPU", example: "any" },
  { name: "memory", label: "Memory on each", example: "12GiB", hint: "Empty: none trains beside it." },
  { name: "duration", label: "Length", example: "2h", hint: "Empty: by iterations, or learned from runs of its name." },
  { name: "by", label: "Promise its end by", example: "18:00, 18h, or earliest", hint: "Empty: no end is promised. It is refused where none can be." },
  { name: "iterations", label: "Iterations in all", type: "number", min: 1, step: 1 },
  { name: "workload", label: "Workload", example: "model/size/training/batch" },
  { name: "budget", label: "It may lose to functions, %", type: "number", min: 1, max: 1900, step: "any", example: "10" },
  { name: "share", label: "It may lose to trainings beside it, %", type: "number", min: 0, max: 1000, step: "any", example: "the project's" },
  { name: "restarts", label: "Starts after failures", type: "number", min: 0, max: 1000, step: 1, example: "0" },
];
const NUMBERS = new Set(["count", "iterations", "restarts"]), PERCENTS = new Set(["budget", "share"]);
/** A time of day is the next one here; all else stays. @param {string} text */
const moment = (text, at = +new Date(`${new Date().toDateString()} ${text}`)) => (/^\d\d?:\d\d$/.test(text) && at ? new Date(at < Date.now() ? at + 86_400_000 : at).toISOString() : text);

/** What the fields say; null = it is not whole yet. @param {HTMLFormElement} form */
function bodyOf(form) {
  if (!form.checkValidity()) return null;
  const body = {};
  for (const [field, raw] of new FormData(form)) {
    const text = String(raw).trim();
    if (text === "") continue;
    // An argument with a space stands in quotes.
    if (field === "argv") body.argv = [...text.matchAll(/"([^"]*)"|'([^']*)'|(\S+)/g)].map(([, a, b, c]) => a ?? b ?? c);
    else body[field] = NUMBERS.has(field) ? Number(text) : PERCENTS.has(field) ? Number(text) / 100 : field === "by" ? moment(text) : text;
  }
  return body;
}

/** A problem of a field, which is named as the form names it. @param {any} problem */
function labelled(problem) {
  const of = FIELDS.find((f) => problem.message.startsWith(`${f.name}: `));
  if (of) problem.message = of.label + problem.message.slice(of.name.length);
  return problem;
}

function outcome({ answer, error, asks, next_s: next }) {
  if (error) return html`${failed(labelled(error))}${next ? html`<p class="quiet">It is asked again in ${next} s.</p>` : nothing}`;
  if (!answer) return html`<p class="quiet">${asks ? "Asking what would become of it…" : "What would become of it is said here as soon as it has a name and an entry point."}</p>`;
  const { gpus, beside, expected, earliest_promise_at: earliest, no_promise: none } = answer;
  const promise = html`${none ? html`<p><bdi>${none}</bdi></p>` : nothing}${earliest ? html`<p class="quiet">An end by ${when(earliest)} would be promised.</p>` : nothing}`;
  const end = expected.end_at ? html`, and end ${when(expected.end_at)}${expected.end_late_at && expected.end_late_at !== expected.end_at ? html`..${when(expected.end_late_at)}` : nothing} <span class="quiet">(length ${seconds(expected.length_s)}, ${words(expected.source)})</span>` : html`; nobody can say when it would end`;
  if (gpus.length) return html`<p><b class="good">It would start at once</b> on ${joined(gpus, gpuLink)}${beside.length ? html` beside ${joined(beside)}, as a guest` : nothing}${end}.</p>${promise}`;
  return html`<p><b>It would wait</b> in place ${expected.place}${expected.start_at ? html`, start ${when(expected.start_at)}${expected.start_late_at && expected.start_late_at !== expected.start_at ? html`..${when(expected.start_late_at)}` : nothing}` : "; nobody can say when it would start"}${end}.</p><p class="quiet"><bdi>${expected.message}</bdi></p>${promise}`;
}
