/** A chart over time (uPlot), with its legend and its table. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { NONE, clock, memory, memoryUnit, num, percent, seconds, timeUnit } from "./format.js";
import { folded } from "./parts.js";

const HEIGHT = 180;
/** Points at the end that may still change: a minute is not over while a gateway's clock is behind. */
const OPEN = 2;
/** The one unit of an axis, by how its values are shown and the largest of them. @type {Map<any, (most: number) => {by: number, unit: string}>} */
const UNITS = new Map(([[seconds, timeUnit], [memory, memoryUnit], [percent, () => ({ by: 0.01, unit: "%" })]]));

/** @typedef {{label: string, token: string, dash?: number[], values: (number|null)[], drawn?: (number|null)[],
 *   area?: boolean, aside?: boolean}} Line
 * `token`: the colour's name in app.css; `drawn`: where it is drawn, if that is not its value (stacked); `aside`: known of everything */

/** Whether a value has none beside it, so that no line would show it. @param {(number|null)[]} values @param {number} i */
const alone = (values, i) => values[i] !== null && (values[i - 1] ?? null) === null && (values[i + 1] ?? null) === null;

/** The charts of one answer: each is made anew when another answer comes, and left out where none of its values is known. */
export class Charts {
  /** @param {{title: string, show: (value: number|null|undefined) => string, most?: number, left?: number, lines: (data: any) => Line[], at?: (data: any) => number[]}[]} of
   * @param {import("./page.js").Page} page */
  constructor(page, of) {
    this.all = of.map((each) => ({ ...each, chart: new Chart({ ...each, page }), drawn: null }));
  }

  /** @param {any} data @param {(title: string, chart: any) => any} place where each stands; `chart` is null where nothing is known of it */
  view(data, place) {
    return this.all.map((each) => {
      const lines = each.lines(data);
      const known = lines.some((line) => !line.aside && line.values.some((value) => value !== null));
      if (known && each.drawn !== data) each.chart.set(each.at?.(data) ?? data.at, lines);
      each.drawn = data;
      return place(each.title, known ? each.chart.view() : null);
    });
  }
}

class Chart {
  /** @param {{title: string, show: (value: number|null|undefined) => string, most?: number, left?: number, page: import("./page.js").Page}} of
   * `show`: a value as text; `left`: pixels left of the lines */
  constructor({ title, show, most, left = 64, page }) {
    this.title = title;
    this.show = show;
    this.unit = UNITS.get(show) ?? (() => ({ by: 1, unit: "" }));
    this.most = most;
    this.left = left;
    this.page = page;
    this.element = document.createElement("div");
    this.element.className = "chart";
    this.element.setAttribute("role", "img");
    this.at = [];
    this.lines = [];
    this.axis = { by: 1, unit: "" };
    this.open = false;
    this.plot = null;
    const { signal } = page;
    const sized = new ResizeObserver(() => this.plot?.setSize({ width: this.element.clientWidth, height: HEIGHT }));
    sized.observe(this.element);
    addEventListener("smore:theme", () => this.make(), { signal });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.make(), { signal });
    signal.addEventListener("abort", () => (sized.disconnect(), this.plot?.destroy()));
  }

  /** @param {number[]} at seconds since 1970 @param {Line[]} lines */
  set(at, lines) {
    this.at = at;
    this.lines = lines;
    this.element.setAttribute("aria-label", `${this.title}. Last: ${this.last().map((l) => `${l.label} ${l.text}`).join(", ")}`);
    const { unit } = this.axis;
    const data = this.data();
    if (this.plot && this.plot.series.length === data.length && this.axis.unit === unit) this.plot.setData(data);
    else this.make();
  }

  /** What is drawn, in the unit of the axis. */
  data() {
    const drawn = this.lines.map((line) => line.drawn ?? line.values);
    this.axis = this.unit(Math.max(0, ...drawn.flat().map((value) => value ?? 0)));
    return [this.at, ...drawn.map((values) => values.map((value) => (value === null ? null : value / this.axis.by)))];
  }

  /** The newest value of each line. */
  last() {
    return this.lines.map((line) => ({ ...line, text: this.show(line.values.findLast((value) => value !== null)) }));
  }

  make() {
    this.plot?.destroy();
    const data = this.data();
    // uPlot knows no CSS variables: a canvas needs the colours themselves.
    const probe = document.body.appendChild(document.createElement("i"));
    const colour = (token) => {
      probe.style.color = `var(--${token})`;
      return getComputedStyle(probe).color;
    };
    const font = "12px system-ui";
    const axis = { stroke: colour("quiet"), font, grid: { stroke: colour("line"), width: 1 }, ticks: { show: false } };
    const at = this.at;
    const options = {
      width: this.element.clientWidth || 600,
      height: HEIGHT,
      legend: { show: false },
      padding: [8, 28, 0, 0],
      cursor: { sync: { key: "smore" }, drag: { x: false, y: false } },
      scales: { y: { range: (_u, _low, high) => [0, this.most === undefined ? high || 1 : this.most / this.axis.by] } },
      axes: [
        { ...axis, values: (_u, marks) => marks.map((s) => clock(new Date(s * 1000), marks[1] - marks[0] < 60)), space: 90, size: 28 },
        { ...axis, values: (_u, marks) => marks.map((v) => `${num(v)} ${this.axis.unit}`), size: this.left, space: 40 },
      ],
      // What is stacked is filled down to the line below it.
      bands: this.lines.flatMap((line, i) => (line.drawn ? [{ series: [i + 1, i + 2] }] : [])),
      series: [
        {},
        ...this.lines.map((line) => ({
          label: line.label,
          stroke: colour(line.token),
          dash: line.dash,
          width: 1.5,
          fill: line.area ? colour(line.token).replace("rgb(", "rgba(").replace(")", ", 0.18)") : undefined,
          points: { size: 6, fill: colour("ground"), filter: () => at.map((_, i) => i).filter((i) => i >= at.length - OPEN || alone(line.drawn ?? line.values, i)) },
        })),
      ],
    };
    probe.remove();
    // A classic script, see index.html.
    this.plot = new globalThis.uPlot(options, data, this.element);
  }

  view() {
    return html`
      <figure class="chart-figure">
        ${this.element}
        <figcaption>
          ${this.last().map((line) => html`<span class="key"><svg viewBox="0 0 24 8" aria-hidden="true"><line x1="0" y1="4" x2="24" y2="4"
            stroke=${`var(--${line.token})`} stroke-width="2.5" stroke-dasharray=${line.dash?.join(" ") ?? nothing} /></svg>${line.label} <b>${line.text}</b></span>`)}
          <span class="quiet">the newest step; hollow points may still change</span>
        </figcaption>
        ${folded(this, this.page, () => this.rows())}
      </figure>`;
  }

  rows() {
    return html`<div class="scroll short" tabindex="0" role="region" aria-label="${this.title}, as a table"><table class="plain">
      <thead><tr><th scope="col">time</th>${this.lines.map((line) => html`<th scope="col" class="num">${line.label}</th>`)}</tr></thead>
      <tbody>${this.at.map((s, i) => html`<tr><td>${clock(new Date(s * 1000))}</td>${this.lines.map((line) =>
        html`<td class="num">${line.values[i] === null ? NONE : this.show(line.values[i])}</td>`)}</tr>`).reverse()}</tbody>
    </table></div>`;
  }
}
