/** Small parts that many pages share. Text of others is isolated with <bdi>, and lit escapes it. */

import { html, nothing, svg } from "../vendor/lit-html/lit-html.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";
import { encoded } from "./api.js";
import { EVERY } from "./hub.js";
import { NONE, count, memory, memoryOf, percent, when, whole, words } from "./format.js";

/** A name or an id. @param {string} text */
export const name = (text) => html`<bdi class="mono">${text}</bdi>`;

export const link = (href, content) => html`<a href=${href}>${content}</a>`;

/** Whose rows a list has. @param {import("./page.js").Page} page */
export const whoseRows = (page) => html`Of ${page.project === EVERY ? "all projects" : html`the project ${name(page.project ?? page.me.project)}`}.`;

/** The address of something in a project, which is named where it is not the session's. @param {string} href @param {string} project @param {any} me */
export const inProject = (href, project, me) => (project && project !== me.project ? `${href}${href.includes("?") ? "&" : "?"}project=${encodeURIComponent(project)}` : href);

export const gpuLink = (id) => (id ? link(`/ui/gpus/${encodeURIComponent(id)}`, name(id)) : "–");

/** The rights of a session: their words, and what they are for. @type {Record<string, [string, string]>} */
export const RIGHTS = {
  read: ["look", "always"],
  invoke: ["call", "try functions, cancel invocations"],
  jobs: ["trainings", "start, stop, hold, release, restart"],
  admin: ["administer", "pause, drain, purge, deadlines; as an operator also GPU instances and the platform"],
};

/** What stands in place of actions for which a session has no right. @param {import("./page.js").Page} page @param {string} right */
export const lacking = (page, right) => (page.may(right) ? nothing
  : html`<span class="quiet">This session lacks the right <b>${RIGHTS[right][0]}</b>. ${link(`/ui/login${encoded({ may: right, to: location.pathname + location.search })}`, "Other rights…")}</span>`);

/** A list in a line. @param {any[]} all @param {(each: any) => any} [of] */
export const joined = (all, of = name) => all.map((each, i) => html`${i ? ", " : nothing}${of(each)}`);

/** One or two by name, more as a number. @param {string[]} gpus */
export const gpuLinks = (gpus) => (gpus.length > 2 ? html`<span title=${gpus.join(", ")}>${count(gpus.length, "GPU instance")}</span>` : gpus.length ? joined(gpus, gpuLink) : NONE);

const GOOD = new Set(["succeeded", "running", "busy", "kept"]);
const BAD = new Set(["failed", "expired", "rejected", "lost", "killed", "late", "not_kept", "unhealthy", "silent"]);

/** A state as a word; the colour only underlines it. @param {string} code */
export const state = (code) =>
  html`<span class="state ${GOOD.has(code) ? "good" : BAD.has(code) ? "bad" : ""}">${words(code)}</span>`;

export const figure = (value, label, title = nothing) =>
  html`<div class="figure" title=${title}><b>${value}</b><span>${label}</span></div>`;

/** A bar with the words beside it. @param {number} share 0 to 1 @param {string} label @param {string} [kind] */
export const bar = (share, label, kind = "") =>
  html`<div class="bar ${kind}" role="img" aria-label=${label}><i style="width:${(100 * Math.min(1, Math.max(0, share))).toFixed(1)}%"></i></div>`;

/** Memory in three parts: of trainings and others, of warm instances, free. */
export function memoryBar(gpu, named = true) {
  const part = (mib) => `width:${((100 * mib) / (gpu.memory_total_mib || 1)).toFixed(1)}%`;
  const [kept, text] = [Math.max(0, gpu.memory_used_mib - gpu.memory_warm_mib), memoryOf(gpu.memory_used_mib, gpu.memory_total_mib)];
  const label = `memory ${text}: ${memory(kept)} of trainings and others, ${memory(gpu.memory_warm_mib)} of warm instances`;
  return html`${named ? html`<span class="label">memory</span>` : nothing}
    <div class="bar" role="img" aria-label=${label} title=${label}><i style=${part(kept)}></i><i class="warm" style=${part(gpu.memory_warm_mib)}></i></div>
    <span class="value">${text}</span>`;
}

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
  const x = (value) => (4 + 92 * Math.min(1, Math.max(0, value / most))).toFixed(1);
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

export const spark = (label, paths) =>
  html`<svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label=${label}>${paths}</svg>`;

/** Buttons that choose one of some values for a parameter of the address.
 * @param {import("./page.js").Page} page @param {string} parameter @param {string[]} values @param {string} now @param {string} label @param {boolean} [said] whether the label is seen */
export function choice(page, parameter, values, now, label, said = false) {
  return html`<span class="choice" role="group" aria-label=${label}>${said ? html`<span class="quiet">${label}&nbsp;</span>` : nothing}${values.map((value) => html`<button
    aria-pressed=${value === now ? "true" : "false"} @click=${() => page.refine({ [parameter]: value })}>${value}</button>`)}</span>`;
}

/** A form whose fields are parameters of the address: each with its label, and choices or what stands in it while it is empty.
 * @param {import("./page.js").Page} page @param {[parameter: string, label: string, of?: string|(string|[string, string])[]][]} fields @param {any} [more] */
export const filters = (page, fields, more = nothing) => html`<form class="filters" role="search" @submit=${(event) => event.preventDefault()}>
  ${fields.map(([parameter, label, of = ""]) => {
    const change = (event) => page.refine({ [parameter]: event.target.value.trim() });
    return html`<label>${label} ${typeof of === "string" ? html`<input type="search" .value=${page.query(parameter)} placeholder=${of} @change=${change}>`
      : html`<select @change=${change}><option value="">any</option>${of.map((each) => html`<option ?selected=${each === page.query(parameter)}>${each}</option>`)}</select>`}</label>`;
  })}${more}</form>`;

/** What lies behind the newest rows of a list, and a button that asks for more of it. */
export class Older {
  /** @param {import("./page.js").Page} page @param {(cursor: string) => Promise<any>} ask @param {string} of the member of an answer that has its rows */
  constructor(page, ask, of) {
    this.page = page;
    this.ask = ask;
    this.of = of;
    this.begin(undefined);
  }

  begin(cursor) {
    this.rows = [];
    this.cursor = cursor;
  }

  /** Load the newest rows, which say where the older ones begin. */
  newest() {
    return this.page.load(async () => {
      const answer = await this.ask("");
      this.begin(answer.next_cursor);
      return answer[this.of];
    });
  }

  async more(cursor) {
    try {
      const answer = await this.ask(cursor);
      this.rows = [...this.rows, ...answer[this.of]];
      this.cursor = answer.next_cursor;
      this.page.errors.delete("older");
    } catch (error) {
      this.page.errors.set("older", error);
    }
    this.page.draw();
  }

  /** @param {string|null|undefined} [first] where the newest rows end, if they did not say so themselves */
  view(first) {
    const cursor = this.cursor === undefined ? first : this.cursor;
    return html`${this.page.errors.has("older") ? html`<p class="bad"><bdi>${this.page.errors.get("older").message}</bdi></p>` : nothing}
      ${cursor ? html`<p><button @click=${() => this.more(cursor)}>Older</button></p>` : nothing}`;
  }
}

/** Lines that a program printed: text, without what colours a terminal. */
export const printed = (lines) => html`<div class="log scroll" tabindex="0" role="region" aria-label="What it printed">
  ${lines.map((line) => html`<div class=${line.stream}>${when(line.at, true)} <bdi>${line.text.replace(/\x1b\[[0-9;?]*[ -/]*[@-~]/g, "")}</bdi></div>`)}</div>`;

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

/** What was loaded, in its four states: loading, error, stale beside an error, ready.
 * @param {import("./page.js").Loaded} loaded @param {(data: any) => any} view */
export function shown(loaded, view) {
  if (loaded.data === undefined) return loaded.error ? failed(loaded.error, loaded.reload) : skeleton;
  return html`${loaded.error ? failed(loaded.error, loaded.reload) : nothing}${view(loaded.data)}`;
}

/** A table; at a narrow width each row becomes a list of `label value`, so the roles are said.
 * @param {{caption: string, columns: {head: any, label?: string, num?: boolean, cell: (row: any) => any}[], rows: any[],
 *   key?: (row: any, i: number) => any, after?: (row: any) => any, mark?: (row: any) => string}} of
 * `key`: what a row is, also where others come before it; by default its id, or its place */
export function table({ caption, columns, rows, key = (row, i) => row.id ?? i, after = () => nothing, mark = () => "" }) {
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

/** Rows of a long table that are drawn at first, and more at a time. */
export const WINDOW = 100;

/** A table, and a button for more of its rows. @param {import("./page.js").Page} page @param {Parameters<typeof table>[0]} of */
export const windowed = (page, of) => html`${table({ ...of, rows: of.rows.slice(0, page.rows) })}
  ${of.rows.length > page.rows ? html`<p><button @click=${() => { page.rows += WINDOW; page.draw(); }}>${Math.min(WINDOW, of.rows.length - page.rows)} more of ${whole(of.rows.length)}</button></p>` : nothing}`;

/** A table that is drawn while it is open. @param {{open: boolean}} of @param {import("./page.js").Page} page @param {() => any} rows */
export const folded = (of, page, rows) => html`<details @toggle=${(event) => { of.open = event.target.open; page.draw(); }}><summary>Table</summary>${of.open ? rows() : nothing}</details>`;

/** A row under a row: what went wrong with it. @param {any} error @param {number} span */
export const errorRow = (error, span) =>
  error ? html`<tr role="row" class="trouble"><td role="cell" colspan=${span}>${failed(error)}</td></tr>` : nothing;
