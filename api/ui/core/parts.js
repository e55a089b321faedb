/** Small parts that many pages share. Text of others is isolated with <bdi>, and lit escapes it. */

import { html, nothing, svg } from "../vendor/lit-html/lit-html.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";
import { memoryOf, percent, words } from "./format.js";

/** A name or an id. @param {string} text */
export const name = (text) => html`<bdi class="mono">${text}</bdi>`;

/** @param {string} href @param {any} content */
export const link = (href, content) => html`<a href=${href}>${content}</a>`;

/** The address of something in a project, which is named where it is not the session's. @param {string} href @param {string} project @param {any} me */
export const inProject = (href, project, me) => (project && project !== me.project ? `${href}${href.includes("?") ? "&" : "?"}project=${encodeURIComponent(project)}` : href);

/** @param {string} id */
export const gpuLink = (id) => (id ? link(`/ui/gpus/${encodeURIComponent(id)}`, name(id)) : "–");

/** @param {string} id @param {any} [content] */
export const invocationLink = (id, content) => link(`/ui/invocations/${encodeURIComponent(id)}`, content ?? name(id));

const GOOD = new Set(["succeeded", "running", "busy", "kept"]);
const BAD = new Set(["failed", "expired", "rejected", "lost", "killed", "late", "not_kept", "unhealthy", "silent"]);

/** A state as a word; the colour only underlines it. @param {string} code */
export const state = (code) =>
  html`<span class="state ${GOOD.has(code) ? "good" : BAD.has(code) ? "bad" : ""}">${words(code)}</span>`;

/** @param {any} value @param {any} label @param {any} [title] */
export const figure = (value, label, title = nothing) =>
  html`<div class="figure" title=${title}><b>${value}</b><span>${label}</span></div>`;

/** A bar with the words beside it. @param {number} share 0 to 1 @param {string} label @param {string} [kind] */
export const bar = (share, label, kind = "") =>
  html`<div class="bar ${kind}" role="img" aria-label=${label}><i style="width:${(100 * Math.min(1, Math.max(0, share))).toFixed(1)}%"></i></div>`;

/** @param {any} gpu @param {boolean} [named] */
export const memoryBar = (gpu, named = true) => html`
  ${named ? html`<span class="label">memory</span>` : nothing}
  ${bar(gpu.memory_used_mib / (gpu.memory_total_mib || 1), `memory ${memoryOf(gpu.memory_used_mib, gpu.memory_total_mib)}`)}
  <span class="value">${memoryOf(gpu.memory_used_mib, gpu.memory_total_mib)}</span>`;

/** What a training has lost, in words: `1.3 % (0.9 % to 1.8 %) of 5 %`. @param {any} job */
export function lossWords(job) {
  if (job.loss === null || job.loss === undefined) return `not measured yet, of ${percent(job.budget)}`;
  return `${percent(job.loss)} (${percent(job.loss_low)} to ${percent(job.loss_high)}) of ${percent(job.budget)}`;
}

/** An interval as a line with a dot, the budget as a dashed upright. @param {any} job */
export function interval(job) {
  const { loss, loss_low: low, loss_high: high, budget } = job;
  const text = `lost ${lossWords(job)}`;
  const most = Math.max(1.5 * budget, high ?? 0, 1e-9);
  const x = (/** @type {number} */ value) => (4 + 92 * Math.min(1, Math.max(0, value / most))).toFixed(1);
  const known = loss !== null && loss !== undefined;
  return html`<svg class="interval" viewBox="0 0 100 16" preserveAspectRatio="none" role="img" aria-label=${text}>
    <title>${text}</title>
    <line class="axis" x1="4" y1="15" x2="96" y2="15" />
    <line class="budget" x1=${x(budget)} y1="1" x2=${x(budget)} y2="15" />
    ${known
      ? svg`<line class="range ${high > budget ? "over" : ""}" x1=${x(low)} y1="8" x2=${x(high)} y2="8" />
          <line class="dot" x1=${x(loss)} y1="8" x2=${x(loss)} y2="8" />`
      : nothing}
  </svg>`;
}

/** A line of values from 0 to `most`; null is a gap. @param {(number|null)[]} values @param {number} most @param {string} kind */
export function sparkPath(values, most, kind) {
  let text = "";
  let gap = true;
  values.forEach((value, i) => {
    if (value === null) gap = true;
    else {
      const x = (100 * i) / Math.max(1, values.length - 1);
      text += `${gap ? "M" : "L"}${x.toFixed(1)},${(23 - (22 * Math.min(value, most)) / (most || 1)).toFixed(1)}`;
      gap = false;
    }
  });
  return svg`<path class=${kind} d=${text} />`;
}

/** @param {string} label @param {any} paths */
export const spark = (label, paths) =>
  html`<svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label=${label}>${paths}</svg>`;

/** Buttons that choose one of some values for a parameter of the address.
 * @param {import("./page.js").Page} page @param {string} parameter @param {string[]} values @param {string} now @param {string} label @param {boolean} [said] whether the label is seen */
export function choice(page, parameter, values, now, label, said = false) {
  return html`<span class="choice" role="group" aria-label=${label}>${said ? html`<span class="quiet">${label}&nbsp;</span>` : nothing}${values.map((value) => html`<button
    aria-pressed=${value === now ? "true" : "false"} @click=${() => page.refine({ [parameter]: value })}>${value}</button>`)}</span>`;
}

/** What is there while nothing has come yet. */
export const skeleton = html`<p class="skeleton">Loading…</p>`;

/** What would stand here, and the command that makes it so. @param {any} text @param {string} [command] */
export const empty = (text, command = "") =>
  html`<p class="empty">${text} ${command ? html`<code>${command}</code>` : nothing}</p>`;

/** @param {any} problem @param {(() => void)|null} [again] */
export const failed = (problem, again = null) => html`
  <div class="failed" role="status">
    <p><bdi>${problem.message}</bdi></p>
    <p class="quiet">
      ${problem.code ?? "fault of the page"}${problem.requestId ? html` · request ${name(problem.requestId)}` : nothing}
      ${again ? html`<button @click=${again}>Try again</button>` : nothing}
    </p>
  </div>`;

/**
 * What was loaded, in its four states: loading, error, stale beside an error, ready.
 * @param {import("./page.js").Loaded} loaded @param {(data: any) => any} view
 */
export function shown(loaded, view) {
  if (loaded.data === undefined) return loaded.error ? failed(loaded.error, loaded.reload) : skeleton;
  return html`${loaded.error ? failed(loaded.error, loaded.reload) : nothing}${view(loaded.data)}`;
}

/**
 * A table; at a narrow width each row becomes a list of `label value`, so the roles are said.
 * @param {{caption: string, columns: {head: any, label?: string, num?: boolean, cell: (row: any) => any}[], rows: any[],
 *   key: (row: any) => any, after?: (row: any) => any, mark?: (row: any) => string}} of
 */
export function table({ caption, columns, rows, key, after = () => nothing, mark = () => "" }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}>
    <table role="table" aria-label=${caption}>
      <thead role="rowgroup">
        <tr role="row">${columns.map((c) => html`<th role="columnheader" scope="col" class=${c.num ? "num" : ""}>${c.head}</th>`)}</tr>
      </thead>
      <tbody role="rowgroup">
        ${repeat(rows, key, (row) => html`
          <tr role="row" class=${mark(row)}>
            ${columns.map((c) => html`<td role="cell" class=${c.num ? "num" : ""} data-label=${c.label ?? c.head}>${c.cell(row)}</td>`)}
          </tr>
          ${after(row)}`)}
      </tbody>
    </table>
  </div>`;
}

/** A row under a row: what went wrong with it. @param {any} error @param {number} span */
export const errorRow = (error, span) =>
  error ? html`<tr role="row" class="trouble"><td role="cell" colspan=${span}>${failed(error)}</td></tr>` : nothing;
