/** What is predicted of degradations, whether it holds, and what became of each fit. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { NONE, count, median, percent, when, whole } from "../core/format.js";
import { empty, shown, state, table } from "../core/parts.js";
import { scatter } from "../core/scatter.js";

const REFRESH_S = 60;

export function open(page) {
  const get = (address, query) => page.load(() => page.get(address, query), REFRESH_S);
  const now = get("/v1/predictor", {});
  const versions = get("/v1/predictor/versions", {});
  const runs = get("/v1/predictor/calibration", page.whose);
  const view = () => html`
    <h1>Predictor</h1>
    ${shown(now, (data) => (data.version ? html`
      <p class="quiet">Version ${data.version} (${data.source}) holds since ${when(data.created_at)}.</p>
      ${table({
        caption: "What the table in force holds",
        rows: data.places,
        columns: [
          { head: "device", cell: (place) => html`<bdi>${place.device}</bdi>` },
          { head: "shared by", cell: (place) => place.sharing_mode },
          { head: "trainings", num: true, cell: (place) => whole(place.trainings.length) },
          { head: "functions", num: true, cell: (place) => whole(place.functions.length) },
          { head: "pairs of both, measured", label: "measured", num: true, cell: (place) => `${whole(place.measured)} of ${whole(place.trainings.length * place.functions.length)}` },
          { head: "of two trainings, measured", label: "of trainings", num: true, cell: (place) => (place.measured_trainings === null ? NONE : whole(place.measured_trainings)) },
        ],
      })}` : empty("Nothing is predicted yet: what a function costs is assumed from what it declares. This profiles the workloads of this machine:", "smore profile")))}
    <section><h2>Told against measured</h2>${shown(runs, calibration)}</section>
    <section><h2>Fits</h2><p class="quiet">RMSLE says how far a fit is off on measurements that it has not seen: at 0.05 the time that work takes beside other work is predicted about 5 % wrong, and the smaller one wins.</p>${shown(versions, (data) => (data.versions.length ? table({
      caption: "Fits of the predictor, the newest first",
      rows: data.versions,
      mark: (each) => (each.version === now.data?.version ? "chosen" : ""),
      columns: [
        { head: "version", num: true, cell: (each) => each.version },
        { head: "begun", cell: (each) => when(each.created_at) },
        { head: "state", cell: (each) => html`${state(each.state)}${each.version === now.data?.version ? html` <b>in force</b>` : nothing}` },
        { head: "why", cell: (each) => html`<bdi>${each.reason}</bdi>` },
      ],
    }) : empty("No predictor was fitted yet.")))}</section>`;
  return { title: "Predictor", topics: [], view };
}

function calibration(data) {
  const assumed = data.assumed ? `${count(data.assumed, "run")} of the newest cannot be compared, because the time alone was assumed.` : "";
  if (!data.at.length) return empty(html`No warm run can be compared yet. ${assumed}`);
  const places = [...Map.groupBy(data.at.keys(), (i) => data.device[i] ?? "")].map(([device, of]) => ({ device, of }));
  const within = `${percent(data.within)} of the newest ${count(data.at.length, "warm run")} stayed within the bound that was told`;
  return html`
    <p>${within} (about 90 % are expected). <span class="quiet">${assumed}</span></p>
    <div class="side-by-side">
      ${scatter({
        points: data.at.map((_, i) => [data.bound[i], data.measured[i]]),
        marks: [0, 0.1, 0.25, 0.5, 1, 2, 4],
        show: percent, x: "bound that was told: this much slower", y: "measured",
        label: `${within}. What lies above the line did not.`,
      })}
      ${table({
        caption: "By device",
        rows: places,
        columns: [
          { head: "device", cell: (place) => (place.device ? html`<bdi>${place.device}</bdi>` : NONE) },
          { head: "runs", num: true, cell: (place) => whole(place.of.length) },
          { head: "within the bound", num: true, cell: (place) => percent(place.of.filter((i) => data.measured[i] <= data.bound[i]).length / place.of.length) },
          { head: "told slower, median", label: "told", num: true, cell: (place) => percent(median(place.of.map((i) => data.told[i]))) },
          { head: "measured slower, median", label: "measured", num: true, cell: (place) => percent(median(place.of.map((i) => data.measured[i]))) },
        ],
      })}
    </div>`;
}
