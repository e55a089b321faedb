/** Where the time of an invocation went: bars on one axis from its arrival to its deadline. */

import { html, nothing, svg } from "../vendor/lit-html/lit-html.js";
import { NONE, ms, when, words } from "./format.js";
import { state, table } from "./parts.js";

/** In the order in which they pass; `other` is the wait for an instance and the run gate, and the way of the result. */
const PHASES = ["queue", "schedule", "dispatch", "load", "run", "other"];
const ROW = 30;
/** How many times longer than all that happened a deadline is that is left out of the drawing. */
const FAR = 10;
/** Widths of the drawing: 1000 units are the axis. */
const WIDE = 1000;

/** @param {any} of an explanation @param {number} now milliseconds since 1970, for one that has not ended */
export function timeline(of, now) {
  const arrival = Date.parse(of.arrival_at);
  const allowed = Date.parse(of.deadline_at) - arrival;
  const end = (of.finished_at ? Date.parse(of.finished_at) : now) - arrival;
  const needed = of.gate.needed_ms;
  // What took a moment of a long deadline could not be seen beside it.
  const far = allowed > FAR * Math.max(end, needed ?? 0);
  const [last, latest] = /** @type {[string, number][]} */ ([["deadline", far ? 0 : allowed], [of.finished_at ? "end" : "now", end], ["earliest finish", needed ?? 0]]).reduce((most, mark) => (mark[1] > most[1] ? mark : most));
  const x = (at) => (WIDE * Math.min(1, Math.max(0, at / (1.02 * latest || 1))));
  let begin = 0;
  const rows = of.attempts.map((attempt) => {
    const parts = [];
    let at = begin;
    for (const phase of PHASES) {
      const length = attempt.phases_ms[phase];
      if (!length) continue;
      parts.push({ phase, at, length });
      at += length;
    }
    const lost = attempt.worker_seen_at;
    begin = attempt.finished_at ? Date.parse(attempt.finished_at) - arrival : at;
    if (lost) parts.push({ phase: "lost", at, length: Math.max(0, begin - at) });
    return { attempt, parts };
  });
  if (of.waits) rows.push({ attempt: null, parts: [{ phase: "queue", at: begin, length: Math.max(0, end - begin) }] });
  const height = ROW * Math.max(1, rows.length);
  const words_ = `from arrival to ${of.finished_at ? "end" : "now"} ${ms(end)}, deadline after ${ms(allowed)}`;
  return html`
    <div class="timeline">
      <svg viewBox="0 0 ${WIDE} ${height}" preserveAspectRatio="none" style="height:${height}px" role="img" aria-label=${words_}>
        <defs><pattern id="hatch" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><line class="hatch" x1="0" y1="0" x2="0" y2="8" /></pattern></defs>
        ${rows.map(({ parts }, i) => parts.map((part) => svg`<rect class="phase ${part.phase}" x=${x(part.at)} y=${ROW * i + 5} width=${Math.max(1, x(part.at + part.length) - x(part.at))} height=${ROW - 10}><title>${part.phase} ${ms(part.length)}</title></rect>`))}
        ${needed === null || needed === undefined ? nothing : svg`<rect class="gate" x=${x(needed) - 3} y="1" width="6" height=${height - 2}><title>earliest finish that the admission gate knew: ${ms(needed)}</title></rect>`}
        ${far ? nothing : svg`<line class="deadline" x1=${x(allowed)} x2=${x(allowed)} y1="0" y2=${height} />`}
      </svg>
      <p class="ends"><span>arrival ${when(of.arrival_at, true)}</span><span>${last} after ${ms(latest)}</span></p>
    </div>
    <ul class="legend">
      ${[...PHASES, "lost"].filter((phase) => rows.some(({ parts }) => parts.some((part) => part.phase === phase))).map((phase) => html`<li><svg viewBox="0 0 16 12" aria-hidden="true"><rect class="phase ${phase}" width="16" height="12" /></svg> ${phase} <b>${ms(rows.reduce((sum, { parts }) => sum + parts.filter((part) => part.phase === phase).reduce((all, part) => all + part.length, 0), 0))}</b></li>`)}
      <li><svg viewBox="0 0 16 12" aria-hidden="true"><line class="deadline" x1="8" x2="8" y1="0" y2="12" /></svg> deadline after <b>${ms(allowed)}</b>${far ? ", beyond this axis" : nothing}</li>
      ${needed == null ? nothing : html`<li><svg viewBox="0 0 16 12" aria-hidden="true"><rect class="gate" x="5" y="1" width="6" height="10" /></svg> earliest finish the gate knew <b>${ms(needed)}</b></li>`}
    </ul>
    ${of.attempts.length ? html`<details ?open=${of.attempts.length > 1}><summary>Table of attempts</summary>${attempts(of)}</details>` : nothing}`;
}

const attempts = (of) => table({
  caption: "Attempts",
  rows: of.attempts,
  columns: [
    { head: "attempt", num: true, cell: (a) => a.attempt },
    { head: "state", cell: (a) => html`${state(a.state)}${a.cause && a.cause !== "ok" ? html` ${words(a.cause)}` : nothing}${a.worker_seen_at ? html`, worker last seen ${when(a.worker_seen_at, true)}` : nothing}` },
    ...PHASES.map((phase) => ({ head: phase, num: true, cell: (a) => ms(a.phases_ms[phase]) })),
    { head: "the load", cell: (a) => Object.entries(a.phases_ms.loading ?? {}).map(([part, length]) => html`<div>${words(part)} ${ms(/** @type {number} */ (length))}</div>`) },
    { head: "batch", num: true, cell: (a) => a.batch ?? NONE },
  ],
});
