/** Lanes on one axis of time: what was on a GPU instance, and when. */

import { html, svg } from "../vendor/lit-html/lit-html.js";
import { clock } from "./format.js";
import { empty, table } from "./parts.js";

const ROW = 20;
/** Shorter than this it could not be seen; the axis has 1000. */
const LEAST = 1.5;

/** A span of seconds since 1970, and how full it is drawn: 0 to 1.
 * @typedef {{from: number, to: number, full?: number, words: string}} Span
 * @typedef {{name: string, kind: "training"|"functions"|"guest"|"rest", href?: string, spans: Span[]}} Lane */

/** @param {Lane[]} lanes @param {number} since @param {number} until seconds since 1970 */
export function lanesOf(lanes, since, until) {
  const seen = lanes.map((lane) => ({ ...lane, spans: lane.spans.filter((each) => each.to >= since && each.from <= until) })).filter((lane) => lane.spans.length);
  if (!seen.length) return empty("Nothing was there in this time: no training, no warm instance, no invocation.");
  const x = (s) => 1000 * Math.min(1, Math.max(0, (s - since) / (until - since)));
  const time = (s) => clock(new Date(s * 1000));
  const span = (kind, each) => {
    const high = Math.max(2, (ROW - 6) * (each.full ?? 1));
    return svg`<rect class=${kind} x=${x(each.from)} y=${ROW - 3 - high} width=${Math.max(LEAST, x(each.to) - x(each.from))} height=${high}><title>${time(each.from)} ${each.words}</title></rect>`;
  };
  return html`<div class="lanes">
      ${seen.map((lane) => html`<span class="lane-name" title=${lane.name}>${lane.href ? html`<a href=${lane.href}><bdi>${lane.name}</bdi></a>` : html`<bdi>${lane.name}</bdi>`}</span>
        <svg viewBox="0 0 1000 ${ROW}" preserveAspectRatio="none" height=${ROW} role="img" aria-label="${lane.name}, last: ${lane.spans.at(-1)?.words}">${lane.spans.map((each) => span(lane.kind, each))}</svg>`)}
    </div>
    <p class="ends lanes-ends"><span>${time(since)}</span><span>${time(until)}</span></p>
    <details><summary>Table</summary><div class="scroll short">${table({
      caption: "What was there, the newest first",
      rows: seen.flatMap((lane) => lane.spans.map((each) => ({ ...each, name: lane.name }))).sort((a, b) => b.from - a.from),
      columns: [
        { head: "what", cell: (each) => html`<bdi>${each.name}</bdi>` },
        { head: "from", cell: (each) => time(each.from) },
        { head: "to", cell: (each) => (each.to > until ? "goes on" : time(each.to)) },
        { head: "in words", cell: (each) => each.words },
      ],
    })}</div></details>`;
}

/** The steps of a column in which something was, as spans; the largest is full. @param {any} series @param {(number|null)[]} values @param {(value: number) => string} words @returns {Span[]} */
export function spansOf(series, values, words) {
  const most = Math.max(...values.map((value) => value ?? 0));
  return values.flatMap((value, i) => (value ? [{ from: series.at[i], to: series.at[i] + series.step_s, full: value / most, words: words(value) }] : []));
}
