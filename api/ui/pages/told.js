/** When trainings really ended, against what was told when they started. */

import { html, svg } from "../vendor/lit-html/lit-html.js";
import { num, percent, seconds, whole, words } from "../core/format.js";
import { empty, table } from "../core/parts.js";

const SIDE = 260;
const EDGE = 46;

/** @param {number[]} values */
const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];

/** @param {any[]} attempts that succeeded, and of which the length was told */
export function told(attempts) {
  if (!attempts.length) return empty("No training of which a length was told has succeeded yet: whether the plan may be believed cannot be said.");
  const pairs = attempts.map((each) => ({ ...each, real_s: (Date.parse(each.ended_at) - Date.parse(each.started_at)) / 1000 }));
  const all = pairs.flatMap((each) => [each.told_s, each.real_s]).filter((s) => s > 0);
  const [least, most] = [Math.log(Math.min(...all) / 1.2), Math.log(Math.max(...all) * 1.2)];
  const part = (/** @type {number} */ s) => (Math.log(Math.max(s, 1e-3)) - least) / (most - least);
  const x = (/** @type {number} */ s) => EDGE + SIDE * Math.min(1, Math.max(0, part(s)));
  const y = (/** @type {number} */ s) => SIDE + 8 - SIDE * Math.min(1, Math.max(0, part(s)));
  const marks = [60, 600, 3600, 6 * 3600, 86400, 7 * 86400].filter((s) => part(s) > 0 && part(s) < 1);
  const ratio = (/** @type {any} */ each) => each.real_s / each.told_s;
  const within = (/** @type {any[]} */ of) => of.filter((each) => each.real_s <= each.told_90_s).length / of.length;
  const sources = [...Map.groupBy(pairs, (each) => each.told_source || "unknown")].map(([source, of]) => ({ source, of }));
  return html`
    <p>Of the last ${whole(pairs.length)} that succeeded ${percent(within(pairs))} ended before the end of one case in ten that was told (90 % are expected); half of them took ${num(median(pairs.map(ratio)))} times as long as was told or less.</p>
    <div class="side-by-side">
      <svg class="scatter" width=${EDGE + SIDE + 12} height=${SIDE + 44} viewBox="0 0 ${EDGE + SIDE + 12} ${SIDE + 44}" role="img" aria-label="Told against real lengths of ${pairs.length} trainings; half of them took ${num(median(pairs.map(ratio)))} times as long as was told or less">
        <rect class="frame" x=${EDGE} y="8" width=${SIDE} height=${SIDE} />
        ${marks.map((s) => svg`<line class="grid" x1=${x(s)} x2=${x(s)} y1="8" y2=${SIDE + 8} /><line class="grid" x1=${EDGE} x2=${EDGE + SIDE} y1=${y(s)} y2=${y(s)} />
          <text x=${x(s)} y=${SIDE + 22} text-anchor="middle">${seconds(s)}</text><text x=${EDGE - 4} y=${y(s) + 4} text-anchor="end">${seconds(s)}</text>`)}
        <line class="same" x1=${EDGE} x2=${EDGE + SIDE} y1=${SIDE + 8} y2="8" />
        ${pairs.map((each) => svg`<circle cx=${x(each.told_s)} cy=${y(each.real_s)} r="3" />`)}
        <text x=${EDGE + SIDE / 2} y=${SIDE + 38} text-anchor="middle">told</text><text x=${EDGE + 6} y="22">real</text>
      </svg>
      ${table({
        caption: "By what told the length",
        rows: sources,
        key: (each) => each.source,
        columns: [
          { head: "told by", cell: (each) => words(each.source) },
          { head: "trainings", num: true, cell: (each) => whole(each.of.length) },
          { head: "real ÷ told, median", label: "real ÷ told", num: true, cell: (each) => num(median(each.of.map(ratio))) },
          { head: "within one case in ten", label: "within 90 %", num: true, cell: (each) => percent(within(each.of)) },
        ],
      })}
    </div>`;
}
