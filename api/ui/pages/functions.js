/** Functions; those that missed most deadlines come first. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { path } from "../core/api.js";
import { NONE, ago, ms, num, percent, seconds, whole } from "../core/format.js";
import { EVERY } from "../core/hub.js";
import { empty, filters, inProject, link, name, shown, spark, sparkPath, whoseRows, windowed } from "../core/parts.js";

const REFRESH_S = 30;
const HOURS = 24;

export function open(page) {
  const functions = page.load(() => page.get("/v1/functions", page.whose).then((answer) => answer.functions), REFRESH_S);
  const day = page.load(() => page.get("/v1/harvest", { by: "function", step: "hour", since: ago(3600 * HOURS), ...page.whose }), REFRESH_S);
  const hour = page.load(() => page.get("/v1/functions:served", page.whose), REFRESH_S);
  const warm = page.load(() => page.project === EVERY ? Promise.resolve(null) : page.get("/v1/prewarm", { project: page.project }), REFRESH_S);
  const view = () => html`
    <h1>Functions</h1>
    <p class="quiet">${whoseRows(page)} Calls are those that ended in the last day. Functions that missed most deadlines come first. p50, p99: half and 99 % of those of the last hour took no longer from arrival to end.</p>
    ${filters(page, [["function", "Function"]])}
    ${shown(functions, (all) => {
      const wanted = page.query("function").toLowerCase();
      const past = sums(day.data);
      const loaded = new Map((warm.data?.functions ?? []).map((each) => [each.function, each]));
      const lately = new Map((hour.data?.served ?? []).map((each) => [`${each.project}/${each.function}`, each]));
      const rows = all.filter((row) => row.name.includes(wanted)).map((row) => ({ ...row, past: past.get(`${row.project}/${row.name}`), hour: lately.get(`${row.project}/${row.name}`), warm: loaded.get(row.name) })).sort(before);
      if (!rows.length) return all.length ? empty(`No function has “${wanted}” in its name.`) : empty("There is no function. This makes one:", "smore deploy ./twice");
      return html`${day.error ? html`<p class="bad" role="status"><bdi>${day.error.message}</bdi> The last day's calls are not known.</p>` : nothing}
        ${windowed(page, { caption: "Functions", rows, key: (row) => `${row.project}/${row.name}`, columns: columns(page) })}`;
    })}`;
  return { title: "Functions", topics: [], view };
}

/** What the last day had, by function. @param {any} harvest */
function sums(harvest) {
  const found = new Map();
  if (!harvest) return found;
  const last = Math.floor(Date.parse(harvest.until) / 3600_000) * 3600;
  for (const part of harvest.parts) {
    const of = found.get(part.key) ?? { invocations: 0, met: 0, cold: 0, run_s: 0, hours: Array(HOURS + 1).fill(0) };
    for (const each of /** @type {const} */ (["invocations", "met", "cold", "run_s"])) of[each] += part[each];
    const ago = (last - part.at) / 3600;
    if (ago >= 0 && ago <= HOURS) of.hours[HOURS - ago] += part.invocations;
    found.set(part.key, of);
  }
  return found;
}

const missed = (row) => (row.past ? row.past.invocations - row.past.met : 0);
const before = (a, b) => missed(b) - missed(a) || (b.past?.invocations ?? 0) - (a.past?.invocations ?? 0) || a.name.localeCompare(b.name);

const columns = (page) => [
  { head: "function", cell: (row) => link(inProject(path`/ui/functions/${row.name}`, row.project, page.me), name(page.project === EVERY ? `${row.project}/${row.name}` : row.name)) },
  { head: "revision", num: true, cell: (row) => row.revision || html`<b class="bad">none serves</b>` },
  { head: "calls", num: true, cell: (row) => (row.past ? whole(row.past.invocations) : NONE) },
  { head: "last day, by hour", label: "last day", cell: (row) => (row.past ? html`<div class="small-spark">${spark(`${whole(row.past.invocations)} calls in the last day`, [sparkPath(row.past.hours, Math.max(...row.past.hours), "functions")])}</div>` : NONE) },
  { head: "in time", num: true, cell: (row) => (row.past?.invocations ? html`<span class=${row.past.met / row.past.invocations < 0.99 ? "bad" : ""}>${percent(row.past.met / row.past.invocations)}</span>` : NONE) },
  { head: "deadline", num: true, cell: (row) => ms(row.deadline_ms) },
  { head: "p50, last hour", label: "p50", num: true, cell: (row) => seconds(row.hour?.p50) },
  { head: "p99, last hour", label: "p99", num: true, cell: (row) => (row.hour?.p99 > row.deadline_ms / 1000 ? html`<b class="bad">${seconds(row.hour.p99)}</b>` : seconds(row.hour?.p99)) },
  { head: "cold starts", num: true, cell: (row) => (row.past?.invocations ? percent(row.past.cold / row.past.invocations) : NONE) },
  { head: "a call runs", num: true, cell: (row) => (row.past?.invocations ? seconds(row.past.run_s / row.past.invocations) : NONE) },
  { head: "loaded", num: true, cell: (row) => (row.warm ? html`${num(row.warm.loaded)}${row.warm.unmet ? html` <b class="bad">no room</b>` : nothing}` : NONE) },
  { head: html`<span class="hidden">more</span>`, label: "more", cell: (row) => html`${row.project === page.me.project ? html`${link(path`/ui/functions/${row.name}` + "?tab=try", "try")} · ` : nothing}${link(inProject(path`/ui/queues` + path`?function=${row.name}`, row.project, page.me), "queue")}` },
];
