/** How a function was called and served, over time. */

import { html } from "../vendor/lit-html/lit-html.js";
import { call, path } from "../core/api.js";
import { Chart } from "../core/chart.js";
import { num, percent, seconds, whole, words } from "../core/format.js";
import { choice, empty, figure, shown } from "../core/parts.js";

/** @type {Record<string, number>} */
export const SPANS = { "1h": 3600, "6h": 21600, "24h": 86400, "7d": 604800, "14d": 1209600 };
const REFRESH_S = 60;
/** Colours and dashes of reasons of cold starts, in their order. @type {[string, number[]][]} */
const LOOKS = [["functions", [6, 4]], ["training", []], ["guest", [2, 3]], ["rest", [8, 3]]];

/** @param {import("../core/page.js").Page} page @param {string} of */
export function overviewTab(page, of) {
  const length = SPANS[page.query("since")] ?? SPANS["24h"];
  const series = page.load(() => call("GET", path`/v1/functions/${of}/series`, { query: { since: new Date(Date.now() - length * 1000).toISOString(), project: page.home }, signal: page.signal }), REFRESH_S);
  const made = (/** @type {string} */ title, /** @type {(v: any) => string} */ show, /** @type {(data: any) => import("../core/chart.js").Line[]} */ lines) => ({ title, lines, chart: new Chart({ title, show, draw: page.draw }), /** @type {any} */ drawn: null });
  const charts = [
    made("Calls a minute: arrivals, and those that ended", num, (data) => {
      const rate = (/** @type {(number|null)[]} */ values) => values.map((value) => (value === null ? null : (60 * value) / data.step_s));
      const late = data.succeeded.map((/** @type {number|null} */ n, /** @type {number} */ i) => (n === null ? null : n - (data.met[i] ?? 0)));
      return [
        { label: "arrivals", token: "rest", values: rate(data.arrivals) },
        { label: "in time", token: "good", values: rate(data.met) },
        { label: "late", token: "functions", dash: [6, 4], values: rate(late) },
        { label: "failed", token: "bad", dash: [2, 3], values: rate(data.failed) },
      ];
    }),
    made("From arrival to end, within 10 %", seconds, (data) => [
      { label: "half of them at most (p50)", token: "training", values: data.p50 },
      { label: "p95", token: "functions", dash: [6, 4], values: data.p95 },
      { label: "p99", token: "bad", dash: [2, 3], values: data.p99 },
    ]),
    made("Mean parts of that", seconds, (data) => [
      { label: "wait", token: "rest", values: data.wait_s },
      { label: "run", token: "training", values: data.run_s },
      { label: "load of a cold start", token: "functions", dash: [6, 4], values: data.load_s },
    ]),
    made("Cold starts by reason", num, (data) => Object.entries(data.cold_reasons).map(([reason, values], i) => ({ label: words(reason), token: LOOKS[i % LOOKS.length][0], dash: LOOKS[i % LOOKS.length][1], values: /** @type {any} */ (values) }))),
    made("Arrivals expected in the next hour", num, (data) => (data.forecast ? [{ label: `expected a minute (${data.forecast.source})`, token: "rest", dash: [2, 3], values: data.forecast.mean }] : [])),
  ];
  const at = (/** @type {any} */ of_, /** @type {any} */ data) => (of_ === charts[4] ? data.forecast.mean.map((/** @type {any} */ _, /** @type {number} */ i) => Date.parse(data.forecast.since) / 1000 + i * data.forecast.step_s) : data.at);
  const plot = (/** @type {any} */ data) => {
    if (!data.succeeded.some((/** @type {any} */ n) => n !== null) && !data.arrivals.some((/** @type {any} */ n) => n !== null)) return never(of);
    const total = (/** @type {string} */ column) => data[column].reduce((/** @type {number} */ sum, /** @type {number|null} */ n) => sum + (n ?? 0), 0);
    const ended = total("succeeded") + total("failed");
    return html`
      <div class="figures">
        ${figure(whole(ended), "calls ended")}
        ${figure(ended ? percent(total("met") / ended) : "–", "in time")}
        ${figure(whole(total("failed")), "did not succeed")}
        ${figure(ended ? percent(total("cold") / ended) : "–", "cold starts")}
        ${figure(seconds(data.worst_s.reduce((/** @type {number|null} */ most, /** @type {number|null} */ s) => (s === null ? most : Math.max(most ?? 0, s)), null)), "the longest")}
      </div>
      ${charts.map((each) => {
        const lines = each.lines(data);
        const known = lines.some((line) => line.values.some((value) => value !== null));
        if (known && each.drawn !== data) {
          each.drawn = data;
          each.chart.set(at(each, data), lines);
        }
        return html`<section><h2>${each.title}</h2>${known ? each.chart.view() : empty(each === charts[4] ? "There is no forecast of it." : "Nothing is known of it in this time.")}</section>`;
      })}`;
  };
  return {
    view: () => html`<p>${choice(page, "since", Object.keys(SPANS), page.query("since") || "24h", "Time")}</p>${shown(series, plot)}`,
    closed: () => charts.forEach((each) => each.chart.close()),
  };
}

/** Three ways to call it. @param {string} of */
const never = (of) => html`<p class="empty">It was not called in this time. Three ways to call it:</p>
  <ul><li>here: <a href="?tab=try">Try</a></li><li>in a terminal: <code>smore run ${of} '{"x": 1}'</code></li><li>in Python: <code>Client().invoke("${of}", {"x": 1})</code></li></ul>`;
