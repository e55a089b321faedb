/** One function: how it was served, its revisions, a call, what is loaded, what it printed, its settings. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { call, path } from "../core/api.js";
import { NONE, SPANS, ago, count, memory, ms, percent, seconds, when, whole } from "../core/format.js";
import { named } from "../core/hub.js";
import { live } from "../core/live.js";
import { choice, empty, errorRow, failed, figure, filters, inProject, joined, lacking, name, printed, shown, state, table } from "../core/parts.js";
import { overviewTab } from "./function_overview.js";
import { tryTab } from "./function_try.js";
import { counted, reasons } from "./prewarm.js";
import { queueVerbs } from "./queue_verbs.js";
import { decided } from "./queues.js";

const REFRESH_S = 10;
const LINES = 300;

/** A tab makes what is loaded for it and returns its view. @type {Record<string, (page: import("../core/page.js").Page, of: string, now: import("../core/page.js").Loaded) => () => any>} */
const TABS = { overview: overviewTab, revisions: revisionsTab, try: tryTab, warm: warmTab, logs: logsTab, settings: settingsTab };

export function open(page) {
  const [of] = page.params;
  const now = page.load(() => page.get(path`/v1/functions/${of}`, { project: page.home }), REFRESH_S);
  const chosen = page.query("tab") in TABS ? page.query("tab") : "overview";
  const tab = TABS[chosen](page, of, now);
  const view = () => html`
    <p class="crumbs"><a href="/ui/functions">Functions</a></p>
    <h1>${name(page.home ? `${page.home}/${of}` : of)}</h1>
    ${shown(now, (fn) => html`${pausing(page, of)}
      ${fn.revision ? html`<p class="quiet">Revision ${fn.revision} serves: ${name(fn.entrypoint)}, deadline ${ms(fn.deadline_ms)}.</p>` : html`<p class="failed"><b>No revision serves.</b> Its first run has failed, or goes on. <a href=${inProject("?tab=revisions", page.home ?? "", page.me)}>Revisions</a> have its log; this deploys another: <code>smore deploy</code></p>`}
      <p>${choice(page, "tab", Object.keys(TABS), chosen, "Part of the page")}</p>`)}
    ${now.error?.status === 404 ? nothing : tab()}`;
  return { title: of, topics: ["queues"], view };
}

/** What people have decided of it, and the button that pauses or resumes it. @param {import("../core/page.js").Page} page @param {string} of */
function pausing(page, of) {
  const row = live.rows("queues")?.find((each) => each.function === of && each.project === (page.home ?? page.me.project));
  if (!row) return nothing;
  const key = named("queues", row);
  const [pause] = queueVerbs(page, row);
  const said = decided(row);
  return html`<div class="buttons start">
      ${pause ? html`<button title=${pause.hint} ?disabled=${page.off(key)} @click=${pause.run}>${pause.label}</button>` : lacking(page, "admin")}
      <span role="status">${said === NONE ? nothing : said}</span></div>
    ${page.errors.has(key) ? failed(page.errors.get(key)) : nothing}`;
}

/** A function is changed in the project of the session alone. @param {import("../core/page.js").Page} page */
const may = (page) => page.may("admin") && !page.home;

function revisionsTab(page, of, now) {
  const all = page.load(() => page.get(path`/v1/functions/${of}/revisions`, { project: page.home }).then((answer) => answer.revisions));
  const since = SPANS[page.query("since")] ? page.query("since") : "7d";
  const served = page.load(() => page.get("/v1/functions:served", { function: of, since: ago(SPANS[since]), project: page.home }).then((answer) => answer.served), REFRESH_S);
  const back = (revision) => async () => {
    const sure = await page.ask({ title: `Roll ${of} back`, action: "Roll back", danger: true, text: `Revision ${revision} takes all calls from now on, in place of ${now.data?.revision}. Its first run has passed.` });
    if (sure) page.act(String(revision), () => call("POST", path`/v1/functions/${of}/rollback`, { body: { revision } }), { done: () => `Revision ${revision} of ${of} serves.` });
  };
  const compared = () => html`<section><h2>How they served ${choice(page, "since", Object.keys(SPANS), since, "Time")}</h2>${shown(served, (rows) => (rows.length ? table({
    caption: "How revisions served",
    rows: rows.toReversed(),
    key: (row) => row.revision,
    mark: (row) => (row.revision === now.data?.revision ? "chosen" : ""),
    columns: [
      { head: "revision", num: true, cell: (row) => row.revision },
      { head: "calls", num: true, cell: (row) => whole(row.succeeded + row.failed) },
      { head: "in time", num: true, cell: (row) => percent(row.met / (row.succeeded + row.failed || 1)) },
      { head: "failed", num: true, cell: (row) => whole(row.failed) },
      { head: "cold starts", num: true, cell: (row) => percent(row.cold / (row.succeeded + row.failed || 1)) },
      { head: "p50", num: true, cell: (row) => seconds(row.p50) },
      { head: "p95", num: true, cell: (row) => seconds(row.p95) },
      { head: "p99", num: true, cell: (row) => seconds(row.p99) },
      { head: "wait, mean", label: "wait", num: true, cell: (row) => seconds(row.wait_s) },
      { head: "run, mean", label: "run", num: true, cell: (row) => seconds(row.run_s) },
      { head: "load, mean", label: "load", num: true, cell: (row) => seconds(row.load_s) },
    ],
  }) : empty("No call ended in this time.")))}</section>`;
  return () => html`${shown(all, (rows) => (rows.length ? table({
    caption: "Revisions, the newest first",
    rows,
    key: (row) => row.revision,
    mark: (row) => (row.revision === now.data?.revision ? "chosen" : ""),
    after: (row) => html`${errorRow(page.errors.get(String(row.revision)), 9)}${row.error ? html`<tr role="row" class="trouble"><td role="cell" colspan="9"><pre class="scroll" tabindex="0"><bdi>${row.error}</bdi></pre></td></tr>` : nothing}`,
    columns: [
      { head: "revision", num: true, cell: (row) => html`${row.revision}${row.revision === now.data?.revision ? html` <b>serves</b>` : nothing}` },
      { head: "state", cell: (row) => state(row.state) },
      { head: "deployed", cell: (row) => when(row.created_at) },
      { head: "handler", cell: (row) => name(row.entrypoint) },
      { head: "load", num: true, cell: (row) => ms(row.measured?.load_ms) },
      { head: "run of its example", num: true, cell: (row) => ms(row.measured?.run_ms) },
      { head: "memory", num: true, cell: (row) => memory(row.measured?.memory_mib) },
      { head: "packages", cell: (row) => (row.requirements.length ? joined(row.requirements, (each) => html`<bdi class="mono">${each}</bdi>`) : "none of its own") },
      { head: html`<span class="hidden">action</span>`, label: "action", cell: (row) => (row.state === "active" && row.revision !== now.data?.revision && may(page) ? html`<button ?disabled=${page.off(String(row.revision))} @click=${back(row.revision)}>Roll back…</button>` : nothing) },
    ],
  }) : empty("It has no revision. This deploys one:", "smore deploy")))}${compared()}`;
}

function warmTab(page, of) {
  const all = page.load(() => page.get("/v1/prewarm", { project: page.home }), REFRESH_S);
  const act = (verb, done) => () => page.act("warm", () => call("POST", path`/v1/functions/${of}/` + verb, { body: {} }), { done: (answer) => `${done} ${count(answer.gpus.length, "GPU instance")}.` });
  return () => shown(all, (data) => {
    const mine = data.functions.find((each) => each.function === of);
    if (!mine) return empty("The leader has not told yet how it is kept loaded.");
    const { counts } = mine;
    return html`
      ${may(page) ? html`<div class="buttons start"><button ?disabled=${page.off("warm")} @click=${act("warm", `${of} is loaded on`)}>Load now</button>
        <button ?disabled=${page.off("warm")} @click=${act("offload", `${of} is unloaded from`)}>Unload</button></div>${page.errors.has("warm") ? failed(page.errors.get("warm")) : nothing}` : nothing}
      <p>${mine.silence ? html`The keep-alive decides: ${mine.silence.replaceAll("_", " ")}.` : html`The rule ${name(mine.source)} decides (${mine.mode}).`}${mine.unmet ? html` <b class="bad">There is no room for those that are wanted.</b>` : nothing}</p>
      <div class="figures">
        ${figure(mine.loaded, "loaded now")}
        ${figure(mine.wanted, "wanted now, ahead of arrivals")}
        ${figure(seconds(mine.load_s), "a load takes")}
        ${figure(mine.parked, "parked in host memory")}
        ${counted(counts)}
      </div>
      <p class="quiet">Counted since ${when(data.since)}.</p>
      <section><h2>Held</h2>${mine.holds.length ? table({
        caption: "Held",
        rows: mine.holds,
        columns: [
          { head: "from", cell: (hold) => when(hold.since) },
          { head: "until", cell: (hold) => (hold.until ? when(hold.until) : "for ever") },
          { head: "instances", num: true, cell: (hold) => hold.instances },
        ],
      }) : empty("Nothing is held: an instance is unloaded when its keep-alive is over.")}</section>
      <section><h2>Cold starts by reason</h2>${reasons(counts.unforeseen)}</section>`;
  });
}

function logsTab(page, of) {
  const lines = page.load(() => page.get(path`/v1/functions/${of}/logs`, { lines: LINES, project: page.home }), 3);
  return () => html`
    ${filters(page, [["with", "With"], ["stream", "Stream", ["stdout", "stderr"]]])}
    ${shown(lines, (data) => {
      const found = data.lines.filter((line) => line.text.includes(page.query("with")) && (!page.query("stream") || line.stream === page.query("stream")));
      return found.length ? printed(found) : empty(data.lines.length ? "No line has that." : "Its handler has printed nothing.");
    })}`;
}

function settingsTab(page, of, now) {
  const submit = (event) => {
    event.preventDefault();
    const data = new FormData(event.currentTarget);
    const number = (field) => (data.get(field) === "" ? null : Number(data.get(field)));
    page.act("settings", async () => {
      await call("PUT", path`/v1/functions/${of}/slo`, { body: { deadline_ms: number("deadline_ms") } });
      return call("PATCH", path`/v1/functions/${of}`, { body: { scaling: { min_warm: number("min_warm"), max_warm: number("max_warm"), keep_alive_s: number("keep_alive_s"), prewarm: data.get("prewarm") } } });
    }, { done: () => `The settings of ${of} hold.` });
  };
  return () => shown(now, (fn) => {
    if (!fn.scaling) return empty("No revision serves, so that there is nothing to set.");
    const set = may(page);
    const field = (key, label, value, min, hint) => html`<label>${label}
      <input name=${key} type="number" step="any" min=${min} .value=${String(value ?? "")} ?disabled=${!set}><span class="quiet">${hint}</span></label>`;
    return html`<form class="settings" @submit=${submit}>
      ${field("deadline_ms", "Deadline, milliseconds from arrival", fn.deadline_ms, 1, "Empty: the revision's own.")}
      ${field("min_warm", "Instances that stay loaded", fn.scaling.min_warm, 0, "Over all GPU instances.")}
      ${field("max_warm", "The most on each GPU instance", fn.scaling.max_warm, 1, "")}
      ${field("keep_alive_s", "An idle one stays loaded, seconds", fn.scaling.keep_alive_s, -1, "−1: for ever.")}
      <label>Loaded ahead of arrivals by <select name="prewarm" ?disabled=${!set}>${["auto", "off", "paper"].map((each) => html`<option ?selected=${each === fn.scaling.prewarm}>${each}</option>`)}</select></label>
      ${set ? html`<button class="primary" ?disabled=${page.off("settings")}>Set</button>` : html`<p class="quiet">${page.home ? "They are changed with a key of its project." : lacking(page, "admin")}</p>`}
      ${page.errors.has("settings") ? failed(page.errors.get("settings")) : nothing}
      <p class="quiet">Everything else stands in function.yaml, and changes with <code>smore deploy</code>.</p>
    </form>`;
  });
}
