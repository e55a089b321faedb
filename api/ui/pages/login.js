/** Login: a key, or the code of `smore open` behind #, becomes a session with fewer scopes than the key. */

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { call, session } from "../core/api.js";
import { RIGHTS, failed } from "../core/parts.js";

export function open(page) {
  // `smore open --admin` ticks it too.
  const ticked = ["read", "invoke", "jobs", page.query("may")];
  let error = null;
  let busy = false;
  const enter = async (body) => {
    busy = true;
    page.draw();
    try {
      session.keep((await call("POST", "/v1/session", { body })).session);
      const to = page.query("to");
      // A whole new page: nothing of the session before stays.
      return location.replace(/^\/ui(\/|$)/.test(to) ? to : "/ui/");
    } catch (caught) {
      error = caught;
    }
    busy = false;
    page.draw();
  };
  const submit = (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const data = new FormData(/** @type {HTMLFormElement} */ (event.target));
    const who = asks ? { code } : { key: String(data.get("key")).trim() };
    enter({ ...who, scopes: ["read", ...data.getAll("scope")], hours: Number(data.get("hours")) });
  };
  const code = location.hash.slice(1);
  // A stranger's link may have the code of the stranger's key.
  const asks = code !== "" && session.half !== null;
  if (code) {
    // Nobody who looks into the history shall have it.
    history.replaceState(null, "", location.pathname + location.search);
    if (!asks) enter({ code, scopes: ticked.filter(Boolean) });
  }
  return {
    title: "Log in",
    view: () => html`
      <div class="login">
        <h1>SMore</h1>
        ${page.query("to") && !session.half ? html`<p>The session has ended, or there was none.</p>` : nothing}
        <form @submit=${submit}>
          ${asks
            ? html`<p>A link asks to log in anew. The session that this browser has will be replaced: go on only if you ran <code>smore open</code>.</p>`
            : html`<label>API key <input name="key" type="password" required autocomplete="current-password" autofocus></label>`}
          <fieldset><legend>This session may</legend>
            ${Object.entries(RIGHTS).map(([scope, [word, what]]) => html`<label class="tick">
              <input type="checkbox" name="scope" value=${scope} ?checked=${ticked.includes(scope)} ?disabled=${scope === "read"}>
              <span><b>${word}</b> <span class="quiet">${what}</span></span></label>`)}
          </fieldset>
          <label>It ends after <select name="hours"><option value="1">1 hour</option><option value="12" selected>12 hours</option></select></label>
          ${error ? failed(error) : nothing}
          <button class="primary" ?disabled=${busy}>Log in</button>
        </form>
        <p class="quiet">The key is in <code>~/.smore/key</code> of whoever runs the platform. <code>smore open</code> logs in without it. A session can never deploy.</p>
      </div>`,
  };
}
