/** How functions are kept loaded, and what that achieved and cost. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { path } from "../core/api.js";
import { NONE, num, percent, when, whole, words } from "../core/format.js";
import { empty, figure, inProject, link, name, shown, windowed } from "../core/parts.js";

const REFRESH_S = 10;

export function open(page) {
  const all = page.load(() => page.get("/v1/prewarm", { project: page.home }), REFRESH_S);
  const view = () => html`<h1>Prewarming</h1>${shown(all, (data) => html`
    ${data.leading ? nothing : html`<p class="failed">No leader has reported lately: what is wanted now is not known.</p>`}
    <p class="quiet">Of the project ${name(page.home ?? page.me.project)}. ${data.on ? html`The rule of functions with <code>prewarm: auto</code> is ${name(data.rule)}.` : "Nothing is loaded ahead of arrivals: keep-alives decide."} Counted since ${when(data.since)}.</p>
    <div class="figures">
      ${figure(data.counts.invocations ? percent(data.counts.cold / data.counts.invocations) : NONE, `cold starts, of ${whole(data.counts.invocations)} runs`)}
      ${counted(data.counts)}
      ${figure(gbHours(data.counts.wasted_gb_s), "of it by loads that nothing used")}
    </div>
    <section><h2>Functions</h2>${data.functions.length ? windowed(page, {
      caption: "Functions, those first that had most cold starts",
      rows: data.functions.toSorted((a, b) => b.counts.cold - a.counts.cold),
      columns: [
        { head: "function", cell: (row) => link(inProject(path`/ui/functions/${row.function}` + "?tab=warm", page.home ?? "", page.me), name(row.function)) },
        { head: "decides", cell: (row) => (row.silence ? `keep-alive: ${words(row.silence)}` : row.source) },
        { head: "wanted", num: true, cell: (row) => html`${row.wanted}${row.unmet ? html` <b class="bad">no room</b>` : nothing}` },
        { head: "loaded", num: true, cell: (row) => row.loaded },
        { head: "cold", num: true, cell: (row) => `${whole(row.counts.cold)} of ${whole(row.counts.invocations)}` },
        { head: "avoided", num: true, cell: (row) => whole(row.counts.saved) },
        { head: "ahead in time", num: true, cell: (row) => whole(row.counts.hits) },
        { head: "late", num: true, cell: (row) => whole(row.counts.late) },
        { head: "wasted", num: true, cell: (row) => whole(row.counts.wasted) },
        { head: "failed", num: true, cell: (row) => whole(row.counts.failed) },
        { head: "without work", num: true, cell: (row) => gbHours(row.counts.idle_gb_s) },
      ],
    }) : empty("There is no function. This makes one:", "smore deploy ./twice")}</section>
    <section><h2>Cold starts by reason</h2>${reasons(data.counts.unforeseen)}</section>`)}`;
  return { title: "Prewarming", topics: [], view };
}

export const reasons = (counts) => Object.keys(counts).length ? html`<dl class="pairs">${Object.entries(counts).map(([code, n]) => html`<dt>${words(code)}</dt><dd>${whole(n)}</dd>`)}</dl>` : empty("There was none.");

export const counted = (counts) => html`
  ${figure(whole(counts.saved), "cold starts avoided")}
  ${["hits", "late", "wasted", "failed"].map((each) => figure(whole(counts[each]), each === "hits" ? "loads ahead in time" : each))}
  ${figure(gbHours(counts.idle_gb_s), "memory without work")}`;

const gbHours = (gb_s) => (gb_s > 0 && gb_s < 3.6 ? "< 0.001 GB-h" : `${num(gb_s / 3600)} GB-h`);
