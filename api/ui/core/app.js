/** The frame of all pages: navigation, problems, project, jump, who is here, theme; and the page of the address in it. */

import { html, nothing, render } from "../vendor/lit-html/lit-html.js";
import { Problem, call, session } from "./api.js";
import { toast } from "./dialog.js";
import { clock, when } from "./format.js";
import { EVERY } from "./hub.js";
import { jump, keys } from "./jump.js";
import { live } from "./live.js";
import { Page } from "./page.js";
import { failed, name, skeleton } from "./parts.js";
import { match, navigation } from "./router.js";

const app = /** @type {HTMLElement} */ (document.getElementById("app"));
const base = new URL("..", import.meta.url).pathname;
const THEMES = ["system", "light", "dark"];
/** Milliseconds in which a page may come before the skeleton shows, and after which it is asked for again. */
const [SKELETON_MS, AGAIN_MS] = [300, 5000];

let me = null;
let projects = null;
let page = null;
let view = null;
let trouble = null;
let newer = false;
let frame = 0;
let drawn = false;

function draw() {
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    const began = performance.now();
    if (!drawn) app.replaceChildren();
    drawn = true;
    render(whole(), app);
    // Read by lab.bench.dashboard.
    performance.clearMeasures("smore:draw");
    performance.measure("smore:draw", { start: began });
  });
}

function go(address, replace = false) {
  history[replace ? "replaceState" : "pushState"](null, "", address);
  show(!replace);
}

async function show(focus = false) {
  const found = match(location.pathname);
  page?.over.abort();
  [view, trouble] = [null, focus ? null : trouble];
  if (!found) {
    document.title = "Not found · SMore";
    trouble = new Problem({ code: "not_found", detail: `There is no page ${location.pathname}.` });
    return draw();
  }
  const mine = (page = new Page({ params: found.params, me, draw, go }));
  const late = setTimeout(draw, drawn ? SKELETON_MS : 0);
  try {
    const [who, { open: opened }] = await Promise.all([
      found.page === "login" ? null : (me ?? call("GET", "/v1/me")),
      import(`../pages/${found.page}.js`),
    ]);
    if (who) mine.me = me = who;
    if (mine !== page) return;
    [view, trouble] = [opened(mine), null];
  } catch (error) {
    if (mine !== page) return;
    // A tab from before an upgrade has no module of this page any more, and the address is the page's already.
    if (!(error instanceof Problem) && (await upgraded())) return location.reload();
    trouble = error;
    if (error.status === 503 || error.code === "unreachable") setTimeout(() => mine === page && show(), AGAIN_MS);
  }
  clearTimeout(late);
  if (me?.operator && !projects) call("GET", "/v1/projects").then((answer) => { projects = answer.projects; draw(); }, () => {});
  if (me && found.page !== "login") live.want([...(view?.topics ?? []), "problems"], mine.project);
  document.title = `${view?.title ?? "Error"} · SMore`;
  draw();
  // The navigation scrolls where it is narrow.
  requestAnimationFrame(() => app.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" }));
  if (focus) requestAnimationFrame(() => { scrollTo(0, 0); app.querySelector("main")?.focus(); });
}

function whole() {
  if (!me) return view ? html`<main tabindex="-1">${view.view()}</main>` : trouble ? html`<main tabindex="-1">${failed(trouble, () => show())}</main>` : skeleton;
  const ready = Boolean(trouble || (view && page?.settled && (view.ready?.() ?? true)));
  return html`
    <a class="skip" href="#main" @click=${(event) => { event.preventDefault(); app.querySelector("main")?.focus(); }}>Skip to the page</a>
    <header>
      <a class="brand" href=${kept("/ui/")}>SMore</a>
      <nav aria-label="Pages">${navigation(me.scopes).map(({ href, word }) =>
        html`<a href=${kept(href)} aria-current=${location.pathname === href ? "page" : here(href) ? "true" : nothing}>${word}</a>`)}</nav>
      <div class="tools">
        ${projects && projects.length > 1 ? html`<select aria-label="Project" @change=${({ target: { value } }) => page?.refine({ project: value === me.project ? "" : value })}>
          <option value=${EVERY} ?selected=${page?.project === EVERY}>all projects</option>
          ${projects.map((each) => html`<option ?selected=${each.name === (page?.project ?? me.project)}>${each.name}</option>`)}</select>` : nothing}
        <button class="jump" @click=${find} aria-keyshortcuts="/ Control+K" title="Jump to anything (/ or Ctrl-K)">Jump <kbd>/</kbd></button>
        ${who()}
      </div>
    </header>
    ${strip()}
    <main id="main" tabindex="-1" class=${live.stale ? "stale" : ""} aria-busy=${ready ? "false" : "true"}>
      ${trouble ? lost() : view ? view.view() : skeleton}
    </main>`;
}

/** Whether the page is below an entry of the navigation. @param {string} href */
const here = (href) => (href === "/ui/" ? location.pathname.startsWith("/ui/gpus/") : location.pathname.startsWith(href));

/** An address with the project that was chosen. @param {string} href */
const kept = (href) => (page?.project ? `${href}?project=${encodeURIComponent(page.project)}` : href);

const lost = () => html`<h1>${trouble instanceof Problem && trouble.code !== "not_found" ? "This page cannot be shown" : "Not found"}</h1>
    ${failed(trouble, trouble.code === "not_found" ? null : () => show())}`;

function who() {
  const ends = me.session?.expires_at;
  return html`<details class="menu">
    <summary><bdi>${me.project}</bdi> · ${me.operator ? "operator" : "project"}</summary>
    <div>
      <p>${me.name ? html`<bdi>${me.name}</bdi> · ` : nothing}${name(me.key)}</p>
      <p class="quiet">may ${me.scopes.join(", ")}${ends ? html`<br>until ${when(ends)}` : nothing}</p>
      <fieldset><legend>Colours</legend>${THEMES.map((each) => html`<label class="tick">
        <input type="radio" name="theme" .checked=${document.documentElement.dataset.theme === each} @change=${() => theme(each)}> ${each}</label>`)}</fieldset>
      <button @click=${() => keys()}>Keys <kbd>?</kbd></button>
      <p><a href="/ui/login">Other rights…</a></p>
      <button @click=${leave}>Sign out</button>
    </div>
  </details>`;
}

/** What is wrong now, on every page. */
function strip() {
  const problems = (live.rows("problems") ?? []).toSorted((a, b) => (a.since < b.since ? 1 : -1));
  const plain = location.protocol === "http:" && !["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);
  return html`<aside id="strip" aria-label="Problems">
    ${live.stale ? html`<p class="problem now" role="status"><b>Out of date.</b> ${live.status.at ? html`As of ${clock(new Date(live.status.at), true)}: ` : nothing}<bdi>${live.status.detail}</bdi> Nothing can be changed until it is back.</p>` : nothing}
    ${newer ? html`<p class="problem">The platform has a newer version of these pages. <button @click=${() => location.reload()}>Reload</button></p>` : nothing}
    ${plain ? html`<p class="problem">This connection is not encrypted: whoever is on the way can read the session.</p>` : nothing}
    ${problems.length > 3 ? html`<details><summary class="problem">${problems.length} problems, the newest: <bdi>${problems[0].text}</bdi></summary>${problems.map(problem)}</details>` : problems.map(problem)}
  </aside>`;
}

const problem = (each) => html`<p class="problem">
  <bdi>${each.text}</bdi>${each.since ? html` <span class="quiet">since ${when(each.since)}</span>` : nothing}
  ${match(each.page) && each.page !== location.pathname ? html` <a href=${each.page}>Show</a>` : nothing}
  ${each.command ? html` <code>${each.command}</code>` : nothing}</p>`;

function theme(value) {
  document.documentElement.dataset.theme = value;
  localStorage.setItem("smore.theme", value);
  dispatchEvent(new Event("smore:theme"));
}

async function leave() {
  const problem = await call("DELETE", "/v1/session").catch((error) => error);
  if (problem) return toast(problem.message);
  live.stop();
  session.forget();
  location.assign("/ui/login");
}

const find = () => jump(me, page?.project ?? null);

addEventListener("click", (event) => {
  const target = /** @type {Element} */ (event.target);
  for (const each of document.querySelectorAll("details.menu[open]")) if (!each.contains(target)) each.removeAttribute("open");
  // A link inside a drawing has no parts of an address.
  const href = target.closest("a[href]")?.getAttribute("href");
  const plain = !(event.ctrlKey || event.metaKey || event.shiftKey || event.button);
  const to = new URL(href ?? "", location.href);
  if (href == null || event.defaultPrevented || !plain || to.origin !== location.origin || !to.pathname.startsWith("/ui/")) return;
  event.preventDefault();
  go(to.pathname + to.search);
});
addEventListener("popstate", () => show());
addEventListener("keydown", (event) => {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.key === "Escape") for (const each of document.querySelectorAll("details.menu[open]")) each.removeAttribute("open");
  if (!me || document.querySelector("dialog[open]")) return;
  const typing = target.matches?.("input, textarea, select");
  const wanted = (event.key === "k" && (event.ctrlKey || event.metaKey)) || (event.key === "/" && !typing);
  if (!wanted && !(event.key === "?" && !typing)) return;
  event.preventDefault();
  wanted ? find() : keys();
});

/** Whether the gateway serves another version of these files than this tab has. */
const upgraded = () => fetch("/ui/", { cache: "no-cache" }).then((answer) => answer.text()).then((shell) => !shell.includes(base), () => false);

let returns = 0;
live.start(async () => {
  draw();
  if (live.status.code === "unauthorised") call("GET", "/v1/me").catch(() => {});
  if (live.returns === returns) return;
  returns = live.returns;
  await Promise.all((page?.loads ?? []).map((each) => each.reload()));
  // The gateway was away: it may be another version by now.
  newer = await upgraded();
  draw();
});
show();
