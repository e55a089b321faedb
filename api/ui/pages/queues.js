/** What waits for each function, and what people decide about it. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { path } from "../core/api.js";
import { menu } from "../core/dialog.js";
import { NONE, count, ms, num, seconds, when, whole } from "../core/format.js";
import { EVERY, named } from "../core/hub.js";
import { awaited, live } from "../core/live.js";
import { bar, empty, errorRow, failed, filters, inProject, joined, lacking, link, name, spark, sparkPath, windowed } from "../core/parts.js";
import { platformVerbs, queueVerbs } from "./queue_verbs.js";

const RATES_S = 60;

export function open(page) {
  const rates = page.load(() => page.get("/v1/functions:served", { step: 120, ...page.whose }).then(({ served }) => new Map(served.map((each) => [`${each.project}/${each.function}`, each]))), RATES_S);
  const view = () => {
    const rows = live.rows("queues");
    if (!rows) return html`<h1>Queues</h1>${awaited()}`;
    if (!rows.length) return html`<h1>Queues</h1>${empty("This project has no function, so nothing can wait. This makes one:", "smore deploy ./twice")}${foot(page)}`;
    const wanted = page.query("function").toLowerCase();
    const found = rows.filter((row) => row.function.includes(wanted)).sort(before);
    const waiting = rows.reduce((sum, row) => sum + row.depth, 0);
    return html`
      <h1>Queues</h1>
      <p class="quiet">${count(waiting, "invocation")} of ${count(rows.length, "function")} wait. In the order of dispatch: the highest priority first. ${lacking(page, "admin")}</p>
      ${filters(page, [["function", "Function"]])}
      ${found.length ? windowed(page, {
        caption: "Queues",
        rows: found,
        key,
        after: (row) => errorRow(page.errors.get(key(row)), 8),
        columns: columns(page, rates.data),
      }) : empty(`No function has “${wanted}” in its name.`)}
      ${foot(page)}`;
  };
  return { title: "Queues", topics: ["queues"], view, ready: () => live.settled("queues") };
}

const key = (row) => named("queues", row);

const before = (a, b) => Number(b.depth > 0) - Number(a.depth > 0) || b.priority - a.priority || b.depth - a.depth || a.function.localeCompare(b.function);

const columns = (page, rates) => [
  { head: "function", cell: (row) => html`${link(inProject(path`/ui/invocations` + path`?function=${row.function}`, row.project, page.me), name(page.project === EVERY ? key(row) : row.function))}` },
  { head: "waiting", num: true, cell: (row) => (row.depth ? link(inProject(path`/ui/invocations` + path`?function=${row.function}&state=queued`, row.project, page.me), whole(row.depth)) : 0) },
  { head: "of class batch", num: true, cell: (row) => (row.batch ? whole(row.batch) : NONE) },
  { head: "oldest waits for", num: true, cell: (row) => (row.depth ? seconds(row.oldest_wait_s) : NONE) },
  { head: "earliest deadline met now, of its deadline", label: "met now, of deadline", cell: deadline },
  { head: "arrivals and ends, last hour", label: "arrivals, ends", cell: (row) => rate(rates?.get(key(row))) },
  { head: "priority", num: true, cell: (row) => (row.priority ? num(row.priority) : NONE) },
  { head: "decided by people", cell: decided },
  { head: html`<span class="hidden">action</span>`, label: "action", cell: (row) => {
    const verbs = queueVerbs(page, row);
    return verbs.length ? html`<button aria-label="Actions of ${row.function}" ?disabled=${page.off(key(row))} @click=${() => menu(row.function, verbs)}>Actions</button>` : nothing;
  } },
];

/** Arrivals as a line, ends dashed. */
function rate(of) {
  if (!of) return NONE;
  const [arrivals, ended] = [of.arrivals, of.ended].map((column) => column.map((n) => n ?? 0));
  const [came, went] = [arrivals, ended].map((column) => column.reduce((all, n) => all + n, 0));
  const most = Math.max(...arrivals, ...ended);
  return html`<div class="small-spark">${spark(`${count(came, "arrival")} and ${count(went, "end")} in the last hour`, [sparkPath(arrivals, most, "training"), sparkPath(ended, most, "functions")])}</div>`;
}

function deadline(row) {
  const { earliest_deadline_ms: earliest, deadline_ms: allowed } = row;
  if (allowed == null) return NONE;
  const text = `${ms(earliest)} of ${ms(allowed)}`;
  if (earliest == null) return html`<div class="rows slim">${bar(0, "not known")}<span class="value">${text}</span></div>`;
  const late = earliest > allowed;
  return html`<div class="rows slim">${bar(earliest / allowed, text, late ? "bad" : "good")}<span class="value">${text}${late ? html` <b class="bad">too late</b>` : nothing}</span></div>`;
}

export function decided(row) {
  const until = (at) => (at ? html` until ${when(at)}` : nothing);
  const said = [
    row.draining ? html`<b>drains</b>` : row.paused && html`<b>paused</b>`,
    row.boost !== 1 && html`boost ×${num(row.boost)}${until(row.boost_until)}`,
    row.pinned_to.length && html`pinned to ${joined(row.pinned_to)}${until(row.pinned_until)}`,
  ].filter(Boolean);
  return said.length ? said.map((each, i) => html`${i ? " · " : nothing}${each}`) : NONE;
}

function foot(page) {
  const verbs = platformVerbs(page);
  if (!verbs.length) return nothing;
  return html`<section><h2>Whole platform</h2>
    <p class="quiet">These hold for the functions of all projects.</p>
    <div class="buttons start">${verbs.map((verb) => html`<button class=${verb.danger ? "danger" : ""} ?disabled=${page.off("platform")} @click=${verb.run}>${verb.label}</button>`)}</div>
    ${page.errors.has("platform") ? failed(page.errors.get("platform")) : nothing}
  </section>`;
}
