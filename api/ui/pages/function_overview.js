/** How a function was called and served, over time. */

import { html } from "../vendor/lit-html/lit-html.js";
import { path } from "../core/api.js";
import { Charts } from "../core/chart.js";
import { SPANS, ago, num, percent, seconds, whole, words } from "../core/format.js";
import { choice, empty, figure, shown } from "../core/parts.js";

const REFRESH_S = 60;
/** Colours and dashes of reasons of cold starts, in their order. @type {[string, number[]][]} */
const LOOKS = [["functions", [6, 4]], ["training", []], ["guest", [2, 3]], ["rest", [8, 3]]];

export function overviewTab(page, of) {
  const length = SPANS[page.query("since")] ?? SPANS["24h"];
  const series = page.load(() => page.get(path`/v1/functions/${of}/series`, { since: ago(length), project: page.home }), REFRESH_S);
  // Of all functions, as their list asks: of one function it would be said by revision.
  const hour = page.load(() => page.get("/v1/functions:served", { project: page.home }).then(({ served }) => served.find((each) => each.function === of) ?? null), REFRESH_S);
  const charts = new Charts(page, [
    { title: "Calls a minute: arrivals, and those that ended", show: num, lines: (data) => {
      const rate = (values) => values.map((value) => (value === null ? null : (60 * value) / data.step_s));
      return [
        { label: "arrivals", token: "rest", values: rate(data.arrivals) },
        { label: "in time", token: "good", values: rate(data.met) },
        { label: "late", token: "functions", dash: [6, 4], values: rate(data.succeeded.map((n, i) => (n === null ? null : n - (data.met[i] ?? 0)))) },
        { label: "failed", token: "bad", dash: [2, 3], values: rate(data.failed) },
      ];
    } },
    { title: "From arrival to end, within 10 %", show: seconds, lines: (data) => [
      { label: "half of them at most (p50)", token: "training", values: data.p50 },
      { label: "p95", token: "functions", dash: [6, 4], values: data.p95 },
      { label: "p99", token: "bad", dash: [2, 3], values: data.p99 },
    ] },
    { title: "Mean parts of that", show: seconds, lines: (data) => [
      { label: "wait", token: "rest", values: data.wait_s },
      { label: "run", token: "training", values: data.run_s },
      { label: "load of a cold start", token: "functions", dash: [6, 4], values: data.load_s },
    ] },
    { title: "Cold starts by reason", show: num, lines: (data) => Object.entries(data.cold_reasons).map(([reason, values], i) => ({ label: words(reason), token: LOOKS[i % LOOKS.length][0], dash: LOOKS[i % LOOKS.length][1], values })) },
    { title: "Arrivals expected in the next hour", show: num, at: ({ forecast }) => forecast.mean.map((_, i) => Date.parse(forecast.since) / 1000 + i * forecast.step_s),
      lines: ({ forecast }) => (forecast ? [{ label: `expected a minute (${forecast.source})`, token: "rest", dash: [2, 3], values: forecast.mean }] : []) },
  ]);
  const plot = (data) => {
    if (!data.succeeded.some((n) => n !== null) && !data.arrivals.some((n) => n !== null)) return never(of);
    const total = (column) => data[column].reduce((sum, n) => sum + (n ?? 0), 0);
    const ended = total("succeeded") + total("failed");
    return html`
      <div class="figures">
        ${figure(whole(ended), "calls ended")}
        ${figure(ended ? percent(total("met") / ended) : "–", "in time")}
        ${figure(whole(total("failed")), "did not succeed")}
        ${figure(ended ? percent(total("cold") / ended) : "–", "cold starts")}
        ${figure(seconds(data.worst_s.reduce((most, s) => (s === null ? most : Math.max(most ?? 0, s)), null)), "the longest")}
        ${["p50", "p99"].map((each) => figure(seconds(hour.data?.[each]), `${each}, last hour`))}
      </div>
      ${charts.view(data, (title, chart) => html`<section><h2>${title}</h2>${chart ?? empty("Nothing is known of it.")}</section>`)}`;
  };
  return () => html`<p>${choice(page, "since", Object.keys(SPANS), page.query("since") || "24h", "Time")}</p>${shown(series, plot)}`;
}

/** Three ways to call it. @param {string} of */
const never = (of) => html`<p class="empty">It was not called in this time. Three ways to call it:</p>
  <ul><li>here: <a href="?tab=try">Try</a></li><li>in a terminal: <code>smore invoke ${of} --input '{"x": 1}'</code></li><li>in Python: <code>Client().invoke("${of}", {"x": 1})</code></li></ul>`;
