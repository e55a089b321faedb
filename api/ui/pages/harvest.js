/** What functions got out of the GPU instances, and what that cost the trainings. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { Charts } from "../core/chart.js";
import { NONE, ago, percent, seconds, whole } from "../core/format.js";
import { choice, empty, figure, filters, joined, name, shown, table, whoseRows, windowed } from "../core/parts.js";

const SPANS = { "24h": 86400, "7d": 604800, "30d": 2592000, "90d": 7776000 };
const REFRESH_S = 60;
const COLUMNS = ["at", "key", "run_s", "money", "invocations", "met", "cold", "saved", "lost", "lost_low", "lost_high", "windows"];

export function open(page) {
  const by = page.query("by") || "project";
  const step = page.query("step") || "day";
  const length = SPANS[page.query("since")] ?? SPANS["7d"];
  const price = page.query("price");
  const parts = page.load(() => page.get("/v1/harvest", { by, step, price, since: ago(length), ...page.whose }), REFRESH_S);
  const times = (data) => [...new Set(data.parts.map((part) => part.at))].sort((a, b) => a - b);
  const chart = new Charts(page, [{ title: "Seconds that functions ran", show: seconds, at: times, lines: (data) => [{ label: `functions ran, a ${step} of UTC`, token: "functions", dash: [6, 4], area: true,
    values: times(data).map((at) => sum(data.parts.filter((part) => part.at === at), "run_s")) }] }]);
  const named = by === "gpu" ? "GPU instance" : by;
  const common = [
    { head: named, cell: (row) => (row.key ? name(row.key) : "never dispatched") },
    { head: "functions ran", num: true, cell: (row) => seconds(row.run_s) },
    { head: "invocations", num: true, cell: (row) => whole(row.invocations) },
    { head: "in time", num: true, cell: (row) => (row.invocations ? percent(row.met / row.invocations) : NONE) },
  ];
  const view = () => html`
    <h1>Harvest</h1>
    <p class="quiet">${whoseRows(page)} Operators choose a project, or all, beside the navigation.</p>
    <p class="choices">${choice(page, "by", ["project", "function", "gpu"], by, "By", true)} ${choice(page, "step", ["hour", "day"], step, "Step", true)} ${choice(page, "since", Object.keys(SPANS), page.query("since") || "7d", "Back", true)}</p>
    ${filters(page, [["price", "Price of a GPU hour", "h100=2.5,a100=1.8"]])}
    ${shown(parts, (data) => {
      if (!data.parts.length) return empty("No function has run in this time. This calls one:", "smore invoke NAME --input '{\"x\": 1}'");
      const totals = data.totals.toSorted((a, b) => b.run_s - a.run_s);
      const all = (field) => sum(totals, field);
      return html`
        <div class="figures">
          ${figure(seconds(all("run_s")), "that functions ran")}
          ${price && !data.unpriced.length ? figure(money(all("money")), "at these prices") : nothing}
          ${figure(whole(all("invocations")), "invocations ended")}
          ${figure(all("invocations") ? percent(all("met") / all("invocations")) : NONE, "in time")}
          ${figure(whole(all("saved")), "cold starts avoided")}
          ${figure(whole(all("cold")), "cold starts")}
        </div>
        ${data.unpriced.length ? html`<p class="bad">Without a price: ${joined(data.unpriced, (device) => html`<bdi>${device || "GPU instances whose device is not known"}</bdi>`)}.</p>` : nothing}
        ${times(data).length > 1 ? chart.view(data, (_, drawn) => drawn) : nothing}
        <section><h2>By ${named}</h2>${table({
          caption: `By ${by}`, rows: totals,
          columns: [
            ...common,
            { head: "cold starts", num: true, cell: (row) => whole(row.cold) },
            { head: "avoided", num: true, cell: (row) => whole(row.saved) },
            ...(price ? [{ head: "money", num: true, cell: (row) => money(row.money) }] : []),
            ...(by === "function" ? [] : [
              { head: "trainings ran", num: true, cell: (row) => seconds(row.trained_s) },
              { head: "lost about", num: true, cell: (row) => seconds(row.lost_s) },
              { head: "which is (95 %)", cell: lost },
            ]),
          ],
        })}</section>
        <section><h2>By ${step}</h2>
          <p><a class="button" download="harvest.csv" href=${csv(data.parts)}>CSV</a></p>${windowed(page, {
          caption: `By ${step}, the newest first`, rows: data.parts.toReversed(),
          columns: [
            { head: `${step} of UTC from`, label: "from", cell: (part) => new Date(part.at * 1000).toISOString().slice(0, step === "day" ? 10 : 16).replace("T", " ") },
            ...common,
            ...(by === "function" ? [] : [{ head: "trainings lost (95 %)", cell: lost }]),
          ],
        })}
          ${by === "function" ? html`<p class="quiet">A training loses to whatever runs beside it, so that nothing is said of it by function.</p>` : nothing}</section>`;
    })}`;
  return { title: "Harvest", topics: [], view };
}

const sum = (parts, field) => parts.reduce((all, part) => all + part[field], 0);
const money = (value) => (value === null ? NONE : value.toFixed(2));
const lost = (part) => (part.lost === null ? NONE : `${percent(part.lost)} (${percent(part.lost_low)} to ${percent(part.lost_high)})`);

function csv(parts) {
  const cell = (value) => (value === null ? "" : /[",\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
  const lines = [COLUMNS.join(","), ...parts.map((part) => COLUMNS.map((each) => cell(each === "at" ? new Date(part.at * 1000).toISOString() : part[each])).join(","))];
  return `data:text/csv;charset=utf-8,${encodeURIComponent(`${lines.join("\n")}\n`)}`;
}
