/** Why an invocation went as it did, or waits. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { call, path } from "../core/api.js";
import { NONE, count, ms, percent, seconds, when, words } from "../core/format.js";
import { empty, failed, gpuLink, inProject, joined, lacking, name, printed, shown, state, table } from "../core/parts.js";
import { timeline } from "../core/phases.js";
import { ENDED } from "./invocations.js";

/** Seconds between two questions: of one that waits the leader is asked, who answers few. */
const WAITING_S = 2;
const COMPLETE_S = 1;
const TRIES = 5;
const LINES = 200;

export function open(page) {
  const [id] = page.params;
  const whose = { project: page.home };
  let tries = 0;
  let called = "";
  let seen = "";
  const why = page.load(async () => {
    const of = await page.get(path`/v1/invocations/${id}/explain`, whose);
    called = of.function;
    const now = `${of.state} ${of.attempts.length}`;
    if (seen !== now) logs.reload();
    seen = now;
    return of;
  });
  const logs = page.load(async () => called ? page.get(path`/v1/functions/${called}/logs`, { invocation: id, lines: LINES, ...whose }) : null);
  page.every(COMPLETE_S, () => {
    if (!why.data) return;
    if (ENDED.has(why.data.state)) {
      if (!why.data.complete && tries++ < TRIES) why.reload();
    } else if (Date.now() - why.at >= WAITING_S * 1000) why.reload();
    else page.draw();
  });
  const view = () => html`
    <p class="crumbs"><a href="/ui/invocations">Invocations</a></p>
    ${why.error?.status === 404 && !why.data
      ? html`<h1>Invocation</h1>${failed(why.error)}
        <p class="quiet">Its id may be wrong, it may be another project's, or older than the history (<code>SMORE_POSTGRES__RETENTION_DAYS</code>).</p>`
      : shown(why, (of) => whole(page, of, logs))}`;
  return { title: `Invocation ${id.slice(-8)}`, topics: [], view };
}

function whole(page, of, logs) {
  const over = ENDED.has(of.state);
  const there = (href) => inProject(href, page.home ?? "", page.me);
  const last = of.attempts.findLast((each) => each.decision);
  const decision = of.waits?.decision ?? last?.decision;
  const cancel = () => page.act(of.id, () => call("POST", path`/v1/invocations/${of.id}/cancel`), { done: () => "The invocation is cancelled." });
  return html`
    <h1>${name(`${of.function}@${of.revision}`)} ${state(of.state)}</h1>
    <p class="quiet">${name(of.id)} · ${count(of.rows, "row")} · arrived ${when(of.arrival_at, true)}${of.finished_at ? html` · ended ${when(of.finished_at, true)}` : nothing}${of.slack_s == null ? nothing : of.slack_s < 0 ? html` · <b class="bad">${seconds(-of.slack_s)} late</b>` : html` · ${seconds(of.slack_s)} before its deadline`}</p>
    <p class="summary"><bdi>${of.summary}${of.waits ? ` ${of.waits.detail}` : ""}</bdi></p>
    ${of.waits ? html`<p class="quiet">${count(of.waits.before, "invocation")} of its function ${of.waits.before === 1 ? "has an earlier deadline" : "have earlier deadlines"}.</p>` : nothing}
    ${of.traceback ? html`<pre class="scroll" tabindex="0"><bdi>${of.traceback}</bdi></pre>` : nothing}
    <div class="buttons start">
      ${over || page.home ? nothing : lacking(page, "invoke")}
      ${!over && !page.home && page.may("invoke") ? html`<button class="danger" ?disabled=${page.off(of.id)} @click=${cancel}>Cancel</button>` : nothing}
      <a class="button" href=${there(path`/ui/functions/${of.function}`)}>Its function</a>
      ${!page.home && page.may("invoke") ? html`<a class="button" href=${path`/ui/functions/${of.function}` + "?tab=try"}>Call it with another input</a>` : nothing}
      <a class="button" href=${there(path`/ui/invocations` + path`?function=${of.function}`)}>Others of this function</a>
    </div>
    ${page.errors.has(of.id) ? failed(page.errors.get(of.id)) : nothing}
    ${of.complete ? nothing : html`<p class="quiet" role="status">The history is a second behind: parts may be missing yet.</p>`}
    <section><h2>Where the time went</h2>${timeline(of, Date.now())}</section>
    <section><h2>${of.waits ? "How the scheduler sees the GPU instances now" : decision ? "Why here" : "What stood against it"}</h2>
      ${decision ? reasons(decision, of) : empty(unplaced(of))}</section>
    ${last ? html`<section><h2>Predicted and measured</h2>${sides(last)}</section>
      <section><h2>What ran beside it</h2>${beside(last)}</section>` : nothing}
    <section><h2>What it printed</h2>${shown(logs, (data) => (data?.lines.length ? printed(data.lines) : empty("Its handler printed nothing while it ran, or its lines have been dropped.")))}</section>`;
}

/** What is kept of one without a decision. @param {any} of */
function unplaced({ state, gate: { allowed_ms: allowed, needed_ms: needed } }) {
  if (state !== "expired" && state !== "rejected") return "No decision is kept: none was made, or it is older than the history.";
  return `The reason above is all that is kept: no GPU instance took it, and which of them were weighed is not recorded.${needed == null ? "" : ` When it arrived, the gate knew of an end after ${ms(needed)}, and its deadline was after ${ms(allowed)}.`}`;
}

/** A degradation with its bound. @param {number|null|undefined} value @param {number|null|undefined} upper @param {boolean} known */
const bounded = (value, upper, known) => (value == null ? NONE : html`${percent(value)} <span class="quiet">≤ ${percent(upper)}${known ? nothing : ", assumed"}</span>`);

function reasons(decision, of) {
  const finish = (c) => {
    if (!c.finish_at) return NONE;
    const slack = (Date.parse(of.deadline_at) - Date.parse(c.finish_at)) / 1000;
    return html`${when(c.finish_at, true)} <span class="quiet">${slack < 0 ? html`<b class="bad">${seconds(-slack)} late</b>` : `${seconds(slack)} left`}</span>`;
  };
  const refused = Object.entries(decision.refused);
  return html`
    ${decision.candidates.length ? table({
      caption: "GPU instances that were weighed, the chosen one first",
      rows: decision.candidates,
      mark: (c) => (c === decision.candidates[0] && !c.refusal && !of.waits ? "chosen" : ""),
      columns: [
        { head: "GPU instance", cell: (c) => html`${gpuLink(c.gpu)}${c === decision.candidates[0] && !c.refusal && !of.waits ? html` <b>chosen</b>` : nothing}` },
        { head: "instance", cell: (c) => (c.warm ? "warm" : "cold") },
        { head: "starts in", num: true, cell: (c) => seconds(c.delay_s) },
        { head: "run alone", num: true, cell: (c) => seconds(c.run_s) },
        { head: "finish", cell: finish },
        { head: "own slowdown, 90 % bound", label: "own slowdown", num: true, cell: (c) => bounded(c.function_degradation, c.function_degradation_upper, c.known) },
        { head: "harm to the training, 90 % bound", label: "harm to training", num: true, cell: (c) => bounded(c.training_degradation, c.training_degradation_upper, c.known) },
        { head: "impact, least is best", label: "impact", num: true, cell: (c) => (c.impact == null ? NONE : c.impact.toPrecision(3)) },
        { head: "refused for", cell: (c) => (c.refusal ? html`<b class="bad">${words(c.refusal)}</b>` : NONE) },
      ],
    }) : empty("No GPU instance was weighed.")}
    <p class="quiet">
      ${refused.length ? html`Refused in all: ${refused.map(([code, n], i) => `${i ? ", " : ""}${n} ${words(code)}`)}. ` : nothing}
      Policy ${name(decision.policy)}${decision.table ? `, degradation table ${decision.table}` : ", no degradation table"}${decision.priority == null ? nothing : `, priority ${decision.priority.toPrecision(3)}`}${decision.at ? html`, decided ${when(decision.at, true)}` : nothing}.
      ${decision.shadow ? html`The shadow policy ${name(decision.shadow.policy)} would have chosen ${decision.shadow.gpu ? gpuLink(decision.shadow.gpu) : "none"}.` : nothing}
    </p>`;
}

/** Predicted is hollow, measured is filled. @param {any} attempt */
function sides({ predicted, measured }) {
  const known = predicted?.known !== false;
  const slack = (s) => (s?.slack_s == null ? NONE : s.slack_s < 0 ? `${seconds(-s.slack_s)} late` : `${seconds(s.slack_s)} before`);
  const harm = (of) => (known ? percent(measured[`${of}_degradation`]) : measured[`${of}_degradation`] == null ? NONE : "not comparable: what was predicted was assumed");
  const rows = [
    ["run", seconds(predicted?.run_s), seconds(measured.run_s)],
    ["end, against the deadline", slack(predicted), slack(measured)],
    ["its own slowdown", bounded(predicted?.function_degradation, predicted?.function_degradation_upper, known), harm("function")],
    ["slowdown of the training", bounded(predicted?.training_degradation, predicted?.training_degradation_upper, known), harm("training")],
  ];
  return table({
    caption: "Predicted and measured",
    rows,
    columns: [
      { head: "of", cell: (row) => row[0] },
      { head: html`<span class="mark hollow" aria-hidden="true"></span>predicted`, label: "predicted", num: true, cell: (row) => row[1] },
      { head: html`<span class="mark" aria-hidden="true"></span>measured`, label: "measured", num: true, cell: (row) => row[2] },
    ],
  });
}

function beside({ co_runners: functions, jobs, job_names: names }) {
  if (!functions.length && !jobs.length) return empty("Nothing: it had the GPU instance for itself.");
  return html`<dl class="pairs">
    <dt>functions</dt><dd>${functions.length ? joined(functions, (each) => html`<a href=${path`/ui/functions/${each}`}>${name(each)}</a>`) : "none"}</dd>
    <dt>trainings</dt><dd>${jobs.length ? joined(jobs, (each) => html`${names[each] ? html`<a href=${path`/ui/trainings/${each}`}>${name(names[each])}</a>` : "another project's"}`) : "none"}</dd>
  </dl>`;
}
