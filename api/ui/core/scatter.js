/** Points of two amounts of the same kind, and the line on which both are equal. */

import { html, svg } from "../vendor/lit-html/lit-html.js";

const SIDE = 260;
const EDGE = 46;

/** @param {{points: [number, number][], marks: number[], show: (value: number) => string, x: string, y: string, label: string,
 *   scale?: (value: number) => number}} of `scale`: where a value is drawn, from the least of all to the most; itself unless it is said */
export function scatter({ points, marks, show, x: across, y: up, label, scale = (value) => value }) {
  const all = points.flat().map(scale);
  const [least, most] = [Math.min(...all), Math.max(...all)];
  const margin = (most - least || 1) / 20;
  const part = (value) => (scale(value) - least + margin) / (most - least + 2 * margin);
  const x = (value) => EDGE + SIDE * part(value);
  const y = (value) => SIDE + 8 - SIDE * part(value);
  return html`<svg class="scatter" width=${EDGE + SIDE + 12} height=${SIDE + 44} viewBox="0 0 ${EDGE + SIDE + 12} ${SIDE + 44}" role="img" aria-label=${label}>
    <rect class="frame" x=${EDGE} y="8" width=${SIDE} height=${SIDE} />
    ${marks.filter((each) => part(each) > 0 && part(each) < 1).map((each) => svg`<line class="grid" x1=${x(each)} x2=${x(each)} y1="8" y2=${SIDE + 8} /><line class="grid" x1=${EDGE} x2=${EDGE + SIDE} y1=${y(each)} y2=${y(each)} />
      <text x=${x(each)} y=${SIDE + 22} text-anchor="middle">${show(each)}</text><text x=${EDGE - 4} y=${y(each) + 4} text-anchor="end">${show(each)}</text>`)}
    <line class="same" x1=${EDGE} x2=${EDGE + SIDE} y1=${SIDE + 8} y2="8" />
    ${points.map(([one, other]) => svg`<circle cx=${x(one)} cy=${y(other)} r="3" />`)}
    <text x=${EDGE + SIDE / 2} y=${SIDE + 38} text-anchor="middle">${across}</text><text x=${EDGE + 6} y="22">${up}</text>
  </svg>`;
}
