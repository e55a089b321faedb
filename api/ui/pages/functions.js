/** The functions of the session's project. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { call, path } from "../core/api.js";
import { NONE, ms, seconds } from "../core/format.js";
import { empty, link, name, shown, table } from "../core/parts.js";

const REFRESH_S = 10;

/** @param {import("../core/page.js").Page} page */
export function open(page) {
  const functions = page.load(() => call("GET", "/v1/functions", { signal: page.signal }).then((answer) => answer.functions), REFRESH_S);
  const view = () => html`
    <h1>Functions</h1>
    <p class="quiet">Of the project ${name(page.me.project)}.</p>
    ${shown(functions, (rows) => (rows.length ? list(rows) : empty("There is no function. This makes one:", "smore deploy ./twice")))}`;
  return { title: "Functions", topics: [], view };
}

/** @param {any[]|null} tensors */
const shape = (tensors) => (tensors ? tensors.map((each, i) => html`${i ? ", " : nothing}${name(each.name)}`) : "JSON");

/** @param {any[]} rows */
const list = (rows) => table({
  caption: "Functions",
  rows,
  key: (row) => row.name,
  columns: [
    { head: "function", cell: (row) => link(path`/ui/invocations` + path`?function=${row.name}`, name(row.name)) },
    { head: "revision", num: true, cell: (row) => row.revision || "none serves" },
    { head: "handler", cell: (row) => name(row.entrypoint) },
    { head: "deadline", num: true, cell: (row) => ms(row.deadline_ms) },
    { head: "takes", cell: (row) => shape(row.inputs) },
    { head: "returns", cell: (row) => shape(row.outputs) },
    { head: "stay loaded", num: true, cell: (row) => row.scaling?.min_warm ?? NONE },
    { head: "unloaded after", num: true, cell: (row) => (row.scaling ? (row.scaling.keep_alive_s < 0 ? "never" : seconds(row.scaling.keep_alive_s)) : NONE) },
    { head: "loaded ahead by", cell: (row) => row.scaling?.prewarm ?? NONE },
    { head: html`<span class="hidden">queue</span>`, label: "queue", cell: (row) => link(path`/ui/queues` + path`?function=${row.name}`, "queue") },
  ],
});
