/** What functions got out of the GPU instances, and what that cost the trainings. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { call } from "../core/api.js";
import { Chart } from "../core/chart.js";
import { NONE, num, percent, seconds, whole } from "../core/format.js";
import { choice, empty, figure, name, shown, table } from "../core/parts.js";

/** @type {Record<string, number>} */
const SPANS = { "24h": 86400, "7d": 604800, "30d": 2592000, "90d": 7776000 };
const REFRESH_S = 60;
const COLUMNS = ["at", "key", "run_s", "money", "invocations", "met", "cold", "saved", "lost", "lost_low", "lost_high", "windows"];

/** @param {import("../core/page.js").Page} page */
export function open(page) {
  const by = page.query("by") || "project";
  const step = page.query("step") || "day";
  const length = SPANS[page.query("since")] ?? SPANS["7d"];
  const price = page.query("price");
  const parts = page.load(() => call("GET", "/v1/harvest", { query: { by, step, price, since: new Date(Date.now() - length * 1000).toISOString(), ...page.whose }, signal: page.signal }), REFRESH_S);
  const chart = new Chart({ title: "Seconds that functions ran", show: seconds, draw: page.draw });
  /** @type {any} */
  let charted = null;
  const view = () => html`
    <h1>Harvest</h1>
    <p class="choices">${choice(page, "by", ["project", "function", "gpu"], by, "By", true)} ${choice(page, "step", ["hour", "day"], step, "Step", true)} ${choice(page, "since", Object.keys(SPANS), page.query("since") || "7d", "Back", true)}</p>
    <form class="filters" @submit=${(/** @type {Event} */ e) => e.preventDefault()}>
      <label>Price of a GPU hour <input .value=${price} placeholder="h100=2.5,a100=1.8" @change=${(/** @type {any} */ e) => page.refine({ price: e.target.value.trim() })}></label>
    </form>
    ${shown(parts, (data) => {
      if (!data.parts.length) return empty("No function has run in this time. This calls one:", "smore run NAME '{\"x\": 1}'");
      const totals = data.totals.toSorted((/** @type {any} */ a, /** @type {any} */ b) => b.run_s - a.run_s);
      const all = (/** @type {string} */ field) => sum(totals, field);
      const times = [...new Set(/** @type {number[]} */ (data.parts.map((/** @type {any} */ part) => part.at)))].sort((a, b) => a - b);
      if (charted !== data) {
        charted = data;
        chart.set(times, [{ label: `functions ran, a ${step} of UTC`, token: "functions", dash: [6, 4], area: true, values: times.map((at) => sum(data.parts.filter((/** @type {any} */ part) => part.at === at), "run_s")) }]);
      }
      return html`
        <div class="figures">
          ${figure(seconds(all("run_s")), "that functions ran")}
          ${price && !data.unpriced.length ? figure(money(all("money")), "at these prices") : nothing}
          ${figure(whole(all("invocations")), "invocations ended")}
          ${figure(all("invocations") ? percent(all("met") / all("invocations")) : NONE, "in time")}
          ${figure(whole(all("saved")), "cold starts avoided")}
          ${figure(whole(all("cold")), "cold starts")}
        </div>
        ${times.length > 1 ? chart.view() : nothing}
        <section><h2>By ${by === "gpu" ? "GPU instance" : by}</h2>${table({
          caption: `By ${by}`,
          rows: totals,
          key: (row) => row.key,
          columns: [
            { head: by === "gpu" ? "GPU instance" : by, cell: (row) => (row.key ? name(row.key) : "never dispatched") },
            { head: "functions ran", num: true, cell: (row) => seconds(row.run_s) },
            { head: "invocations", num: true, cell: (row) => whole(row.invocations) },
            { head: "in time", num: true, cell: (row) => (row.invocations ? percent(row.met / row.invocations) : NONE) },
            { head: "cold starts", num: true, cell: (row) => whole(row.cold) },
            { head: "avoided", num: true, cell: (row) => whole(row.saved) },
            ...(price ? [{ head: "money", num: true, cell: (/** @type {any} */ row) => money(row.money) }] : []),
            ...(by === "function" ? [] : [
              { head: "trainings ran", num: true, cell: (/** @type {any} */ row) => hours(row.trained_s) },
              { head: "lost about", num: true, cell: (/** @type {any} */ row) => hours(row.lost_s) },
              { head: "which is (95 %)", cell: lost },
            ]),
          ],
        })}
          ${data.unpriced.length ? html`<p class="bad">Without a price: ${data.unpriced.map((/** @type {string} */ device, /** @type {number} */ i) => html`${i ? ", " : nothing}<bdi>${device || "GPU instances whose device is not known"}</bdi>`)}.</p>` : nothing}</section>
        <section><h2>By ${step}</h2>
          <p><a class="button" download="harvest.csv" href=${csv(data.parts)}>CSV</a></p>${table({
          caption: `By ${step}`,
          rows: data.parts.toReversed().slice(0, 500),
          key: (part) => `${part.at}/${part.key}`,
          columns: [
            { head: `${step} of UTC from`, label: "from", cell: (part) => new Date(part.at * 1000).toISOString().slice(0, step === "day" ? 10 : 16).replace("T", " ") },
            { head: by === "gpu" ? "GPU instance" : by, cell: (part) => (part.key ? name(part.key) : "never dispatched") },
            { head: "functions ran", num: true, cell: (part) => seconds(part.run_s) },
            { head: "invocations", num: true, cell: (part) => whole(part.invocations) },
            { head: "in time", num: true, cell: (part) => (part.invocations ? percent(part.met / part.invocations) : NONE) },
            ...(by === "function" ? [] : [{ head: "trainings lost (95 %)", cell: lost }]),
          ],
        })}
          ${by === "function" ? html`<p class="quiet">A training loses to whatever runs beside it, so that nothing is said of it by function.</p>` : nothing}</section>`;
    })}`;
  return { title: "Harvest", topics: [], view, closed: () => chart.close() };
}

/** @param {any[]} parts @param {string} field */
const sum = (parts, field) => parts.reduce((all, part) => all + part[field], 0);
/** @param {number|null} value */
const money = (value) => (value === null ? NONE : value.toFixed(2));
/** @param {number|null} s */
const hours = (s) => (s === null ? NONE : `${num(s / 3600)} h`);
/** @param {any} part */
const lost = (part) => (part.lost === null ? NONE : `${percent(part.lost)} (${percent(part.lost_low)} to ${percent(part.lost_high)})`);

/** @param {any[]} parts */
function csv(parts) {
  const cell = (/** @type {any} */ value) => (value === null ? "" : /[",\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
  const lines = [COLUMNS.join(","), ...parts.map((part) => COLUMNS.map((each) => cell(each === "at" ? new Date(part.at * 1000).toISOString() : part[each])).join(","))];
  return `data:text/csv;charset=utf-8,${encodeURIComponent(`${lines.join("\n")}\n`)}`;
}
