/** Numbers and times as text: two or three figures, the unit once, "–" for what is unknown. */

import { html } from "../vendor/lit-html/lit-html.js";

export const NONE = "–";
/** Spans of charts, seconds. */
export const SPANS = { "1h": 3600, "6h": 21600, "24h": 86400, "7d": 604800, "14d": 1209600 };
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const SECOND = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** By the number of decimals: making one costs far more than using it. */
const FORMATS = Array.from({ length: 12 }, (_, digits) => new Intl.NumberFormat("en-GB", { maximumFractionDigits: digits }));

const significant = (x, digits) =>
  FORMATS[Math.min(11, Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(x) || 1))))].format(x);

/** With all its figures. @param {number} n */
export const whole = (n) => FORMATS[0].format(n);

export const num = (x) => (x === null || x === undefined ? NONE : significant(x, 3));

/** A count and its noun: `1 training`, `3 trainings`. @param {number} n @param {string} one */
export const count = (n, one) => `${whole(n)} ${one}${n === 1 ? "" : "s"}`;

/** A fraction: 0.0134 → `1.3 %`. @param {number|null|undefined} x */
export const percent = (x) => (x === null || x === undefined ? NONE : `${significant(Math.abs(x) < 5e-5 ? 0 : 100 * x, 2)} %`);

/** The unit in which a time is told. @param {number} s */
export function timeUnit(s) {
  const size = Math.abs(s);
  if (size < 0.9995) return { by: 1e-3, unit: "ms" };
  if (size < 120) return { by: 1, unit: "s" };
  if (size < 7200) return { by: 60, unit: "min" };
  return size < 2 * 86400 ? { by: 3600, unit: "h" } : { by: 86400, unit: "d" };
}

export function seconds(s) {
  if (s === null || s === undefined) return NONE;
  if (Math.abs(s) < 5e-7) return "0 s";
  const { by, unit } = timeUnit(s);
  return `${significant(s / by, unit === "min" ? 2 : 3)} ${unit}`;
}

export const ms = (x) => seconds(x === null || x === undefined ? x : x / 1000);

export const memoryUnit = (mib) => (mib >= 1024 ? { by: 1024, unit: "GiB" } : { by: 1, unit: "MiB" });

export function memory(mib) {
  if (mib === null || mib === undefined) return NONE;
  const { by, unit } = memoryUnit(mib);
  return `${significant(mib / by, 3)} ${unit}`;
}

/** `55 of 80 GiB`. @param {number} used_mib @param {number} total_mib */
export function memoryOf(used_mib, total_mib) {
  const { by, unit } = memoryUnit(total_mib);
  const used = used_mib && used_mib < by ? memory(used_mib) : significant(used_mib / by, 2);
  return `${used} of ${significant(total_mib / by, 3)} ${unit}`;
}

/** Local time as text; the day is named where it is not today. @param {Date} at @param {boolean} [exact] */
export function clock(at, exact = false) {
  const time = (exact ? SECOND : CLOCK).format(at);
  return at.toDateString() === new Date().toDateString() ? time : `${DAY.format(at)} ${time}`;
}

/** Local time, UTC in the title; a line may break before it. @param {string|null|undefined} iso @param {boolean} [exact] with seconds */
export function when(iso, exact = false) {
  if (!iso) return NONE;
  const at = new Date(iso);
  return html`<wbr><time datetime=${iso} title="${at.toISOString().replace("T", " ").replace("Z", "")} UTC">${clock(at, exact)}</time>`;
}

/** The moment so many seconds ago, as a query has it. @param {number} s */
export const ago = (s) => new Date(Date.now() - 1000 * s).toISOString();
export const median = (values) => values.toSorted((a, b) => a - b)[values.length >> 1];

/** Codes and fields as words: `out_of_memory` → `out of memory`. @param {string} code */
export const words = (code) => code.replaceAll("_", " ");
