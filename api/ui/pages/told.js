/** When trainings really ended, against what was told when they started. */

import { html } from "../vendor/lit-html/lit-html.js";
import { median, num, percent, seconds, whole, words } from "../core/format.js";
import { empty, table } from "../core/parts.js";
import { scatter } from "../core/scatter.js";

/** @param {any[]} attempts that succeeded, and of which the length was told */
export function told(attempts) {
  if (!attempts.length) return empty("No training of which a length was told has succeeded yet: whether the plan may be believed cannot be said.");
  const pairs = attempts.map((each) => ({ ...each, real_s: (Date.parse(each.ended_at) - Date.parse(each.started_at)) / 1000 }));
  const ratio = (each) => each.real_s / each.told_s;
  const within = (of) => of.filter((each) => each.real_s <= each.told_90_s).length / of.length;
  const sources = [...Map.groupBy(pairs, (each) => each.told_source || "unknown")].map(([source, of]) => ({ source, of }));
  return html`
    <p>Of the last ${whole(pairs.length)} that succeeded ${percent(within(pairs))} ended by the late end that was told, which one in ten may miss (90 % are expected); half of them took ${num(median(pairs.map(ratio)))} times as long as was told or less.</p>
    <div class="side-by-side">
      ${scatter({
        points: pairs.map((each) => [each.told_s, each.real_s]),
        marks: [60, 600, 3600, 6 * 3600, 86400, 7 * 86400],
        show: seconds, x: "told", y: "real",
        label: `Told against real lengths of ${pairs.length} trainings; half of them took ${num(median(pairs.map(ratio)))} times as long as was told or less`,
        scale: (s) => Math.log(Math.max(s, 1e-3)),
      })}
      ${table({
        caption: "By what told the length",
        rows: sources,
        columns: [
          { head: "told by", cell: (each) => words(each.source) },
          { head: "trainings", num: true, cell: (each) => whole(each.of.length) },
          { head: "real ÷ told, median", label: "real ÷ told", num: true, cell: (each) => num(median(each.of.map(ratio))) },
          { head: "by the late end", num: true, cell: (each) => percent(within(each.of)) },
        ],
      })}
    </div>`;
}
