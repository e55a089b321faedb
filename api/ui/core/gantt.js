/** A Gantt chart: rows of bars on an axis of time. Arrow keys go from bar to bar. */

import { html, nothing, svg } from "../vendor/lit-html/lit-html.js";
import { clock } from "./format.js";

/** Heights: of a row, of the lane of its guests, between rows, of the axis. */
const ROW = 18;
const LANE = 14;
const GAP = 4;
const HEAD = 22;
/** Widths: of the names of rows, of a letter, the least between two marks of time. */
const NAMES = 124;
const LETTER = 6.7;
const MARKS = 84;
const DAY_S = 86400;
const STEPS_S = [60, 300, 900, 1800, 3600, 7200, 10800, 21600, 43200, DAY_S, 2 * DAY_S, 7 * DAY_S, 28 * DAY_S];

/** @typedef {{id: string, job: string, name: string, kind: "past"|"now"|"waits"|"other", guest: boolean, bad: boolean, from: number,
 *   to: number|null, late: number|null, startLate: number|null, words: string, href: string, rows: number}} Bar
 * Times are seconds since 1970; `to` null = open; `late`: the end of one case in ten; `rows`: over how many rows it goes.
 * @typedef {{key: string, name: string, href: string, bars: Bar[]}} Row */

/** Text that fits into a width. @param {string} text @param {number} width */
function cut(text, width) {
  const letters = Math.floor((width - 6) / LETTER);
  if (letters >= text.length) return text;
  return letters < 4 ? "" : `${text.slice(0, letters - 1)}…`;
}

/** Marks of local time, as many as a width takes. @param {number} since @param {number} until @param {number} width */
export function marks(since, until, width) {
  const most = Math.max(1, width / MARKS);
  const step = STEPS_S.find((each) => (until - since) / each <= most) ?? (until - since) / most;
  const zone = 60 * new Date(since * 1000).getTimezoneOffset();
  const first = Math.ceil((since - zone) / step) * step + zone;
  return Array.from({ length: Math.max(0, Math.floor((until - first) / step) + 1) }, (_, i) => first + i * step);
}

export class Gantt {
  constructor(title) {
    this.title = title;
    /** The bar that Tab comes to. */
    this.active = "";
    /** What the bar under the pointer, or the one in focus, says. */
    this.words = document.createElement("p");
    this.words.className = "gantt-words";
    this.words.textContent = "Point at a bar, or go to it with Tab and the arrow keys.";
    this.rows = [];
  }

  /** @param {{rows: Row[], since: number, until: number, now: number, width: number}} of `width` in pixels */
  view({ rows, since, until, now, width }) {
    this.rows = rows;
    const tops = [HEAD];
    for (const row of rows) tops.push(/** @type {number} */ (tops.at(-1)) + ROW + GAP + (row.bars.some((bar) => bar.guest) ? LANE : 0));
    const height = /** @type {number} */ (tops.at(-1));
    const x = (s) => NAMES + (width - NAMES) * Math.min(1, Math.max(0, (s - since) / (until - since)));
    const seen = rows.flatMap((row) => row.bars);
    if (!seen.some((bar) => bar.id === this.active)) this.active = seen[0]?.id ?? "";
    return html`
      <div class="gantt" role="group" aria-label=${this.title} @keydown=${(e) => this.move(e)}
        @focusin=${(e) => this.say(e)} @pointerover=${(e) => this.say(e)}>
        <svg width=${width} height=${height} viewBox="0 0 ${width} ${height}">
          ${marks(since, until, width - NAMES).map((s) => svg`<line class="grid" x1=${x(s)} x2=${x(s)} y1=${HEAD - 4} y2=${height} />
            ${x(s) > width - MARKS / 2 || x(s) < NAMES + 14 ? nothing : svg`<text class="mark-of-time" x=${x(s)} y=${HEAD - 8}>${clock(new Date(s * 1000))}</text>`}`)}
          ${rows.map((row, i) => svg`
            <a href=${row.href} tabindex="-1"><text class="row-name" x="0" y=${tops[i] + 13}>${cut(row.name, NAMES)}</text></a>
            ${row.bars.map((bar) => this.bar(bar, x, tops, i, until))}
            <g aria-hidden="true">${row.bars.map((bar) => label(bar, x, tops[i], until))}</g>`)}
          ${now > since && now < until ? svg`<line class="now" x1=${x(now)} x2=${x(now)} y1=${HEAD - 4} y2=${height} />` : nothing}
        </svg>
      </div>
      ${this.words}`;
  }

  /** @param {Bar} bar @param {(s: number) => number} x @param {number[]} tops @param {number} i @param {number} until */
  bar(bar, x, tops, i, until) {
    const to = bar.to ?? until;
    const top = tops[i] + (bar.guest ? ROW : 0);
    const high = bar.guest ? LANE - 2 : tops[i + bar.rows - 1] + ROW - tops[i];
    const left = x(bar.from);
    const wide = Math.max(2, x(to) - left);
    return svg`<a href=${bar.href} class="${bar.kind} ${bar.guest ? "guest-bar" : ""} ${bar.bad ? "bad-bar" : ""}" tabindex=${bar.id === this.active ? 0 : -1}
        aria-label=${bar.words} data-bar=${bar.id} data-job=${bar.job} data-from=${bar.from} data-to=${bar.to ?? ""} data-late=${bar.late ?? ""}>
      <rect class="body" x=${left} y=${top} width=${wide} height=${high} rx="2" />
      ${bar.startLate && bar.startLate > bar.from ? svg`<rect class="may-start" x=${left} y=${top + high - 3} width=${Math.max(1, x(Math.min(to, bar.startLate)) - left)} height="3" />` : nothing}
      ${bar.late && bar.late > to ? svg`<line class="late" x1=${x(to)} x2=${x(bar.late)} y1=${top + high - 1} y2=${top + high - 1} />` : nothing}
    </a>`;
  }

  say(event) {
    const link = event.target.closest("a[data-bar]");
    if (link) this.words.textContent = link.getAttribute("aria-label");
  }

  /** Left and right along a row and on to the next, up and down to the nearest bar of the next row that has one. @param {any} event */
  move(event) {
    const id = event.target.closest("a[data-bar]")?.dataset.bar;
    if (!id) return;
    const flat = this.rows.flatMap((row, i) => row.bars.map((bar) => ({ bar, i })));
    const at = flat.findIndex(({ bar }) => bar.id === id);
    const { bar, i } = flat[at];
    const next = {
      ArrowLeft: () => flat[at - 1],
      ArrowRight: () => flat[at + 1],
      ArrowUp: () => near(flat.filter((each) => each.i < i), bar, -1),
      ArrowDown: () => near(flat.filter((each) => each.i > i), bar, 1),
    }[/** @type {string} */ (event.key)]?.();
    if (!next) return;
    event.preventDefault();
    const links = [...event.currentTarget.querySelectorAll("a[data-bar]")];
    for (const link of links) link.setAttribute("tabindex", "-1");
    this.active = next.bar.id;
    const link = links.find((each) => each.dataset.bar === this.active);
    link.setAttribute("tabindex", "0");
    link.focus();
  }
}

/** What stands in a bar, as far as it fits. @param {Bar} bar @param {(s: number) => number} x @param {number} top @param {number} until */
function label(bar, x, top, until) {
  const left = x(bar.from);
  const text = cut(`${bar.bad ? "✕ " : ""}${bar.name}${bar.rows > 1 ? ` ×${bar.rows}` : ""}`, x(bar.to ?? until) - left);
  return text ? svg`<text x=${left + 4} y=${top + (bar.guest ? ROW + LANE - 5 : ROW - 5)}>${text}</text>` : nothing;
}

/** The bar that begins nearest to another, in the nearest row. @param {{bar: Bar, i: number}[]} others @param {Bar} bar @param {number} way */
function near(others, bar, way) {
  const row = way < 0 ? Math.max(...others.map((each) => each.i)) : Math.min(...others.map((each) => each.i));
  const away = (each) => Math.abs(each.bar.from - bar.from);
  return others.filter((each) => each.i === row).sort((a, b) => away(a) - away(b))[0];
}
