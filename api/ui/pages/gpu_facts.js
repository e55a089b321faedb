/** What tiles, rows and the page of a GPU instance say of it. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { count, memory, percent, seconds, when } from "../core/format.js";
import { spark, sparkPath } from "../core/parts.js";

/** Warm instances of a function above which they are counted. */
const CHIPS = 4;

export const used = (gpu) => (gpu.silent_since ? "silent" : percent(gpu.utilisation));

/** The training nearest to its budget: 1 = at it. @param {any} gpu */
export const harm = (gpu) => Math.max(-1, ...gpu.jobs.map((job) => (job.loss_high == null ? -1 : job.loss_high / job.budget)));

/** The last hour as a line. @param {any} gpu @param {any} series */
export function lineOf(gpu, series) {
  if (!series) return html`<div class="spark"></div>`;
  const label = `used in the last hour, now ${used(gpu)}, by functions ${percent(gpu.function_utilisation)}`;
  return spark(label, [sparkPath(series.used, 1, "training"), sparkPath(series.functions, 1, "functions")]);
}

/** Warm instances of the caller's project. @param {any} gpu */
export function chips(gpu) {
  const warm = Map.groupBy(gpu.warm, (each) => `${each.function} ${each.state}`);
  const groups = [...warm.values()].toSorted((a, b) => Number(b[0].state === "busy") - Number(a[0].state === "busy"));
  const left = groups.slice(CHIPS);
  if (!groups.length && !gpu.parked.length) return nothing;
  return html`<p class="chips">
    ${groups.slice(0, CHIPS).map((group) => html`<span class="chip ${group[0].state}" title="revision ${group[0].revision}, ${memory(group[0].memory_mib)}, ran ${seconds(group[0].idle_s)} ago"><bdi>${group[0].function}</bdi> ${group[0].state}${group.length > 1 ? ` ×${group.length}` : ""}</span>`)}
    ${left.length ? html`<span class="chip">and ${left.length} more</span>` : nothing}
    ${gpu.parked.length ? html`<span class="chip">${gpu.parked.length} parked</span>` : nothing}
  </p>`;
}

/** The warm instances in a row: `2 busy, 3 idle`. @param {any} gpu */
export function warmCounts(gpu) {
  const states = Object.entries(Object.groupBy(gpu.warm, (each) => each.state)).map(([state, all]) => `${all?.length} ${state}`);
  return states.length ? states.sort().join(", ") : "–";
}

/** What is special about it now, in words. @param {any} gpu */
export function facts(gpu) {
  const others = gpu.trainings - gpu.jobs.length;
  const unallowed = (gpu.strangers ?? []).filter((each) => !each.allowed).length;
  const said = [
    gpu.silent_since && html`<b class="bad">silent</b> since ${when(gpu.silent_since)}`,
    gpu.health && html`<b class="bad">unhealthy:</b> <bdi>${gpu.health}</bdi>`,
    gpu.drained ? html`<b>drained</b>` : gpu.draining ? html`<b>draining</b>` : gpu.paused && html`<b>paused</b>`,
    gpu.quarantined.length && html`<b class="bad">keeps out</b> <bdi>${gpu.quarantined.join(", ")}</bdi>`,
    unallowed && html`<b class="bad">${count(unallowed, "unregistered process").replace("processs", "processes")}</b>`,
    gpu.duty < 1 && `duty ${percent(gpu.duty)}`,
    gpu.closed_until && new Date(gpu.closed_until) > new Date() && "closed window",
    ...gpu.jobs.filter((job) => job.held < 1).map((job) => html`<bdi>${job.name || job.id}</bdi> held ${percent(job.held)}`),
    others > 0 && `${count(others, "training")} of another project`,
  ].filter(Boolean);
  return said.length ? html`<p class="facts">${said.map((each, i) => html`${i ? " · " : nothing}${each}`)}</p>` : nothing;
}
