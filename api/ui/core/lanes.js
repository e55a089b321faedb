/** Bars on an axis of time: attempts of trainings on a GPU instance. */

import { html, svg } from "../vendor/lit-html/lit-html.js";
import { clock, when } from "./format.js";
import { empty, name, state, table } from "./parts.js";

const ROW = 22;

/** @param {any[]} attempts @param {number} since @param {number} until seconds since 1970 */
export function attemptLanes(attempts, since, until) {
  const seen = attempts.map((each) => ({ ...each, from: Date.parse(each.started_at) / 1000, to: each.ended_at ? Date.parse(each.ended_at) / 1000 : until }))
    .filter((each) => each.to >= since && each.from <= until);
  if (!seen.length) return empty("No training was there in this time.");
  const x = (/** @type {number} */ s) => 1000 * Math.min(1, Math.max(0, (s - since) / (until - since)));
  return html`<div class="lanes">
      <svg viewBox="0 0 1000 ${ROW * seen.length}" preserveAspectRatio="none" style="height:${ROW * seen.length}px" role="img"
        aria-label="${seen.length} attempts of trainings from ${clock(new Date(since * 1000))} to ${clock(new Date(until * 1000))}">
        ${seen.map((each, i) => svg`<rect class="training" x=${x(each.from)} y=${ROW * i + 3} width=${Math.max(2, x(each.to) - x(each.from))} height=${ROW - 6} />`)}
      </svg>
      ${seen.map((each, i) => html`<bdi class="lane-name" style="top:${ROW * i}px;left:min(${x(each.from) / 10}%, 100% - 16ch)">${each.name}</bdi>`)}
    </div>
    <p class="ends"><span>${clock(new Date(since * 1000))}</span><span>${clock(new Date(until * 1000))}</span></p>
    <details><summary>Table</summary>${table({
      caption: "Attempts of trainings",
      rows: seen,
      key: (each) => `${each.job}/${each.attempt}`,
      columns: [
        { head: "training", cell: (each) => name(each.name) },
        { head: "attempt", num: true, cell: (each) => each.attempt },
        { head: "from", cell: (each) => when(each.started_at) },
        { head: "to", cell: (each) => when(each.ended_at) },
        { head: "ended by", cell: (each) => (each.why ? state(each.why) : "goes on") },
      ],
    })}</details>`;
}
