/** A call of a function: what would become of it as one types, and the call itself. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { call, path } from "../core/api.js";
import { toast } from "../core/dialog.js";
import { ms, percent, when } from "../core/format.js";
import { empty, failed, gpuLink, joined, lacking, link, name, skeleton, state } from "../core/parts.js";
import { DryRun } from "./dry_run.js";

/** Characters of an input that a page can hold well; larger ones go by curl. */
const MOST = 1 << 20;
/** Values of a tensor up to which a template has all of them. */
const TEMPLATE = 64;
/** What JSON has no numbers for. */
const BINARY = new Set(["BF16"]);
/** The slider's ends, as powers of ten of milliseconds. */
const SLIDER = { min: 0, max: 6, step: 0.02 };
/** A day: no deadline is later. */
const MOST_MS = 86_400_000;

/** Zeros of a shape; -1 is one. @param {number[]} shape @param {any} zero @returns {any} */
const zeros = (shape, zero) => (shape.length ? Array.from({ length: Math.max(1, shape[0]) }, () => zeros(shape.slice(1), zero)) : zero);

/** An input that has the right form; null = it is too large to be written out. @param {any} fn */
function template(fn) {
  if (!fn.inputs) return "{}";
  const size = (tensor) => tensor.shape.reduce((all, n) => all * Math.max(1, n), 1);
  if (fn.inputs.some((tensor) => BINARY.has(tensor.datatype) || size(tensor) > TEMPLATE)) return null;
  return JSON.stringify(Object.fromEntries(fn.inputs.map((t) => [t.name, zeros(t.shape, t.datatype === "BYTES" ? "" : t.datatype === "BOOL" ? false : 0)])));
}

export function tryTab(page, of, now) {
  let text = null;
  /** Milliseconds; null = the function's own. @type {number|null} */
  let deadline = null;
  /** What is wrong with the deadline as it was typed. */
  let flaw = "";
  let done = null;
  let error = null;
  let busy = false;
  /** Bytes that are sent in place of the text. @type {File|null} */
  let file = null;
  let shape = "";
  const revisions = page.load(() => page.get(path`/v1/functions/${of}/revisions`, { project: page.home }).then((answer) => answer.revisions));
  /** The handler's own example, or an input that has the right form. */
  const first = () => {
    const measured = revisions.data?.find((each) => each.revision === now.data.revision)?.measured;
    const fits = measured?.example != null && Boolean(measured.inputs) === Boolean(now.data.inputs);
    return fits ? JSON.stringify(measured.example) : template(now.data);
  };
  const trial = new DryRun((body, signal) => call("POST", path`/v1/functions/${of}/invocations` + ":dryRun", { body, signal }), page);
  /** What the form says; null = its text is no JSON. */
  const body = () => {
    try {
      return { input: JSON.parse(text ?? ""), ...(deadline === null ? {} : { deadline_ms: deadline }) };
    } catch {
      return null;
    }
  };
  const changed = () => {
    const asked = body();
    if (asked && !flaw && (text ?? "").length <= MOST) trial.ask(asked);
    else trial.stop();
    page.draw();
  };
  const send = async (event) => {
    event.preventDefault();
    busy = true;
    error = done = null;
    page.draw();
    try {
      const more = file ? { ...(deadline && { "Smore-Deadline-Ms": String(deadline) }), ...(shape && { "Smore-Shape": shape }) } : {};
      done = await call("POST", path`/v1/functions/${of}/invocations`, { body: file ?? body(), more, signal: page.signal });
    } catch (caught) {
      error = caught;
    }
    busy = false;
    page.draw();
  };
  const view = () => {
    if (!now.data?.revision) return now.data ? empty("No revision serves, so that it cannot be called.") : nothing;
    if (page.home) return empty("It is another project's: a key of that project calls it.");
    if (!page.may("invoke")) return empty(html`${lacking(page, "invoke")} In a terminal:`, `smore invoke ${of} --input '${template(now.data) ?? "…"}'`);
    if (text === null) {
      if (revisions.data === undefined && !revisions.error) return skeleton;
      text = first() ?? "";
      if (body()) trial.ask(body());
    }
    const asked = body();
    const large = text.length > MOST;
    return html`<form class="try" @submit=${send}>
      <p class="quiet">It takes ${now.data.inputs ? joined(now.data.inputs, (t) => html`${name(t.name)} (${t.datatype}, ${t.shape.map((n) => (n < 0 ? "any" : n)).join(" × ") || "one value"})`) : "a JSON value"}.</p>
      ${template(now.data) === null ? html`<p>Its tensors are too large, or of a type that JSON has no numbers for, to be written here. Their bytes go by curl:</p>${code(raw(of, now.data))}` : nothing}
      <label>Input, as JSON <textarea name="input" rows="6" spellcheck="false" .value=${text} aria-invalid=${asked ? "false" : "true"} @input=${(e) => { text = e.target.value; changed(); }}></textarea>
        ${large ? html`<span class="bad">That is more than this page sends: use curl.</span>` : asked ? nothing : html`<span class="bad">This is no JSON yet.</span>`}</label>
      ${now.data.inputs ? html`<label>Or its bytes: the tensors one after the other, little-endian <input type="file" name="bytes" @change=${(e) => { file = e.target.files[0] ?? null; page.draw(); }}></label>
        ${file && now.data.inputs.some((t) => t.shape.slice(1).some((n) => n < 0)) ? html`<label>Their shapes <input name="shape" .value=${shape} placeholder=${shapes(now.data)} @change=${(e) => { shape = e.target.value.trim(); }}></label>` : nothing}` : nothing}
      <label>Deadline, milliseconds from arrival <input type="number" name="deadline_ms" min="1" max=${MOST_MS} step="any" placeholder=${now.data.deadline_ms} aria-invalid=${flaw ? "true" : "false"}
          @input=${(e) => { flaw = e.target.validationMessage; if (!flaw) deadline = e.target.value ? Number(e.target.value) : null; changed(); }}>
        ${flaw ? html`<span class="bad">${flaw}</span>` : html`<span class="quiet">${deadline === null ? `Empty: the function's own, ${ms(now.data.deadline_ms)}.` : ms(deadline)}</span>`}</label>
      <input type="range" aria-label="The same, as a slider" min=${SLIDER.min} max=${SLIDER.max} step=${SLIDER.step} .value=${String(Math.log10(deadline ?? now.data.deadline_ms))} aria-valuetext=${ms(deadline ?? now.data.deadline_ms)}
        @input=${(e) => { deadline = Number((10 ** Number(e.target.value)).toPrecision(2)); e.target.form.elements.deadline_ms.value = deadline; flaw = ""; changed(); }}>
      <div class="outcome" aria-live="polite">${outcome(trial)}</div>
      <div class="buttons start">
        <button class="primary" ?disabled=${(!file && (!asked || large)) || flaw || busy}>${busy ? "Waiting…" : "Call"}</button>
        ${["curl", "Python", "smore"].map((way) => html`<button type="button" ?disabled=${!asked} @click=${() => copy(page, way, of, asked)}>Copy as ${way}</button>`)}
      </div>
      ${error ? failed(error) : nothing}
      ${done ? result(done) : nothing}
    </form>`;
  };
  return view;
}

const code = (text) => html`<pre class="scroll" tabindex="0">${text}</pre>`;

const result = (done) => html`<section><h2>${done.id ? html`Result ${link(path`/ui/invocations/${done.id}`, name(done.id))} ${done.state ? state(done.state) : nothing}` : "Result"}</h2>
  ${code(JSON.stringify("output" in done ? done.output : done, null, 2))}</section>`;

function outcome({ answer, error, asks, next_s: next }) {
  if (error) return html`${failed(error)}${next ? html`<p class="quiet">It is asked again in ${next} s.</p>` : nothing}`;
  if (!answer) return html`<p class="quiet">${asks ? "Asking what would become of it…" : "What would become of it is said here."}</p>`;
  const { predicted } = answer;
  const say = { placed: "It would run at once", waits: "It would wait", late: "It would be late", refused: "It would be refused" }[/** @type {string} */ (answer.outcome)];
  return html`<p><b class=${answer.outcome === "placed" ? "good" : answer.feasible ? "" : "bad"}>${say}.</b> <bdi>${answer.detail}</bdi></p>
    <p class="quiet">${answer.gpu ? html`${gpuLink(answer.gpu)}${answer.finish_at ? html`, end ${when(answer.finish_at, true)}` : nothing}. ` : nothing}${predicted?.training_degradation == null ? nothing : html`${predicted.known ? "Predicted" : "Assumed"}: the training there would be ${percent(predicted.training_degradation)} slower while it runs. `}${answer.earliest_deadline_ms == null ? nothing : html`Earliest deadline that would be accepted: <b>${ms(answer.earliest_deadline_ms)}</b>.`}</p>`;
}

const HEADERS = (type) => `-H "X-API-Key: $SMORE_KEY" -H "Content-Type: ${type}"`;
/** For a shell, in single quotes. @param {string} text */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** Of one row. @param {any} fn */
const shapes = (fn) => (fn.inputs ?? []).map((t) => `${t.name}=${t.shape.map((n) => Math.max(1, n)).join(",")}`).join(";");

const raw = (of, fn) => `curl ${location.origin}/v1/functions/${of}/invocations ${HEADERS("application/octet-stream")} -H "Smore-Shape: ${shapes(fn)}" --data-binary @input.bin`;

/** The same call elsewhere, into the clipboard, which only secure pages have. @param {import("../core/page.js").Page} page @param {string} way @param {string} of @param {any} body */
async function copy(page, way, of, body) {
  const text = {
    curl: `curl ${location.origin}/v1/functions/${of}/invocations ${HEADERS("application/json")} -d ${quoted(JSON.stringify(body))}`,
    Python: `import json\nfrom smore_client import Client\n\nwith Client("${location.origin}") as client:\n    print(client.invoke("${of}", json.loads(${JSON.stringify(JSON.stringify(body.input))})${body.deadline_ms ? `, deadline_ms=${body.deadline_ms}` : ""}))`,
    smore: `smore invoke ${of} --input ${quoted(JSON.stringify(body.input))}${body.deadline_ms ? ` --deadline-ms ${body.deadline_ms}` : ""}`,
  }[way] ?? "";
  try {
    await navigator.clipboard.writeText(text);
    toast(`Copied as ${way}.`);
  } catch {
    await page.ask({ title: `As ${way}`, action: "Close", text: html`<code>${text}</code>` });
  }
}
