/** Jump to any page, function, training, GPU instance or invocation; and the list of keys. */

import { html, nothing, render } from "../vendor/lit-html/lit-html.js";
import { call, path } from "./api.js";
import { open } from "./dialog.js";
import { EVERY } from "./hub.js";
import { navigation } from "./router.js";

const MOST = 12;
const INVOCATION = /^[0-9a-f]{32}$/;
export function jump(me, project) {
  let places = navigation(me.scopes).map(({ href, word }) => ({ kind: "page", name: word, href }));
  let text = "";
  const list = document.createElement("ul");
  const draw = () => {
    const wanted = text.trim().toLowerCase();
    const found = INVOCATION.test(wanted)
      ? [{ kind: "invocation", name: wanted, href: path`/ui/invocations/${wanted}` }]
      : places.filter((each) => each.name.toLowerCase().includes(wanted)).slice(0, MOST);
    render(html`${found.map((each) => html`<li><a href=${each.href} @click=${() => list.closest("dialog")?.close()}>
      <span class="quiet">${each.kind}</span> <bdi class="mono">${each.name}</bdi></a></li>`)}
      ${found.length ? nothing : html`<li class="quiet">Nothing is named so. An invocation needs its whole id.</li>`}`, list);
  };
  const move = (event) => {
    const links = [...list.querySelectorAll("a")];
    const at = links.indexOf(/** @type {any} */ (document.activeElement));
    if (event.key === "Enter" && at < 0 && links[0]) links[0].click();
    else if (event.key === "ArrowDown") links[Math.min(at + 1, links.length - 1)]?.focus();
    else if (event.key === "ArrowUp") at > 0 ? links[at - 1].focus() : list.closest("dialog")?.querySelector("input")?.focus();
    else return;
    event.preventDefault();
  };
  draw();
  const dialog = open(html`<dialog aria-label="Jump" class="finder" @keydown=${move}>
    <label>Jump to <input type="search" autocomplete="off" @input=${(event) => { text = event.target.value; draw(); }}></label>${list}
  </dialog>`);
  dialog.querySelector("input")?.focus();
  const more = (asked, of) => asked.then((answer) => { places = [...places, ...of(answer)]; draw(); }, () => {});
  more(call("GET", "/v1/gpus", { query: { silent: true } }), ({ gpus }) => gpus.map((g) => ({ kind: "GPU instance", name: g.id, href: path`/ui/gpus/${g.id}` })));
  more(call("GET", "/v1/jobs", { query: project === EVERY ? { all_projects: true } : { project } }), ({ jobs }) =>
    jobs.map((j) => ({ kind: "training", name: j.name, href: path`/ui/trainings/${j.id}` + (project ? path`?project=${j.project}` : "") })));
  more(call("GET", "/v1/queues", { query: { project: project === EVERY ? null : project } }), ({ queues }) =>
    queues.map((q) => ({ kind: "function", name: q.function, href: path`/ui/invocations` + path`?function=${q.function}` })));
}

const KEYS = [
  ["/ or Ctrl-K", "jump to a page, a function, a GPU instance, an invocation"],
  ["?", "this list"],
  ["Tab, Shift-Tab", "from one thing to the next"],
  ["Enter", "open, or do it"],
  ["Escape", "close"],
];

export function keys() {
  const dialog = open(html`<dialog aria-label="Keys"><h2>Keys</h2>
    <dl class="pairs">${KEYS.map(([key, what]) => html`<dt><kbd>${key}</kbd></dt><dd>${what}</dd>`)}</dl>
    <div class="buttons"><button @click=${() => dialog.close()}>Close</button></div></dialog>`);
}
