/** Dialogs for confirmation and values, menus of a row, and toasts. */

import { html, nothing, render } from "../vendor/lit-html/lit-html.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";

/** Seconds that a toast stays. */
const TOAST_S = 8;

/** @type {{id: number, text: string, undo?: () => void}[]} */
let toasts = [];
let last = 0;

/** @typedef {{name: string, label: string, type?: string, value?: string, hint?: string, required?: boolean, options?: string[], min?: number, max?: number, step?: string}} Field */

export function open(content) {
  const place = document.body.appendChild(document.createElement("div"));
  const before = document.activeElement;
  render(content, place);
  const dialog = /** @type {HTMLDialogElement} */ (place.querySelector("dialog"));
  dialog.addEventListener("close", () => {
    place.remove();
    if (before instanceof HTMLElement && before.isConnected) before.focus();
  });
  // A click on what is behind it closes it.
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.showModal();
  return dialog;
}

/** Ask for a confirmation or for values. Returns the values by name; null = it was closed.
 * @param {{title: string, text?: any, action: string, fields?: Field[], word?: string, danger?: boolean}} of
 * `word`: what must be typed before anything is done
 * @returns {Promise<Record<string, any>|null>} */
export function ask({ title, text = nothing, action, fields = [], word = "", danger = false }) {
  return new Promise((resolve) => {
    let values = null;
    const all = word ? [...fields, { name: "_word", label: `Type “${word}” to confirm`, required: true }] : fields;
    const submit = (/** @type {SubmitEvent} */ event) => {
      event.preventDefault();
      const form = /** @type {HTMLFormElement} */ (event.target);
      const data = new FormData(form);
      if (word && data.get("_word") !== word) return /** @type {any} */ (form.elements.namedItem("_word")).select();
      values = Object.fromEntries(all.map((f) => [f.name, f.options ? data.getAll(f.name) : data.get(f.name)]));
      form.closest("dialog")?.close();
    };
    const dialog = open(html`
      <dialog aria-label=${title}>
        <form @submit=${submit}>
          <h2><bdi>${title}</bdi></h2>
          ${text === nothing ? nothing : html`<p>${text}</p>`}
          ${all.map(field)}
          <div class="buttons">
            <button type="button" @click=${() => dialog.close()}>Cancel</button>
            <button class=${danger ? "danger" : "primary"}>${action}</button>
          </div>
        </form>
      </dialog>`);
    dialog.addEventListener("close", () => resolve(values));
  });
}

function field(f) {
  if (f.options)
    return html`<fieldset><legend>${f.label}</legend>
      ${f.options.map((each) => html`<label class="tick"><input type="checkbox" name=${f.name} value=${each}> <bdi class="mono">${each}</bdi></label>`)}
    </fieldset>`;
  return html`<label>${f.label}
    <input name=${f.name} type=${f.type ?? "text"} .value=${f.value ?? ""} ?required=${f.required} autocomplete="off"
      min=${f.min ?? nothing} max=${f.max ?? nothing} step=${f.step ?? nothing}>
    ${f.hint ? html`<span class="quiet">${f.hint}</span>` : nothing}</label>`;
}

/** What can be done with a row. @param {string} title @param {{label: string, hint: string, run: () => any}[]} items */
export function menu(title, items) {
  const dialog = open(html`
    <dialog aria-label=${title} class="actions">
      <h2><bdi>${title}</bdi></h2>
      <ul>${items.map((item) => html`<li><button @click=${() => { dialog.close(); item.run(); }}>${item.label}</button><span class="quiet">${item.hint}</span></li>`)}</ul>
      <div class="buttons"><button @click=${() => dialog.close()}>Close</button></div>
    </dialog>`);
}

/** Say what was done, for a while. @param {string} text @param {(() => void)|undefined} [undo] */
export function toast(text, undo) {
  const id = ++last;
  toasts = [...toasts, { id, text, undo }];
  drawToasts();
  setTimeout(() => drop(id), TOAST_S * 1000);
}

function drop(id) {
  toasts = toasts.filter((each) => each.id !== id);
  drawToasts();
}

function drawToasts() {
  const place = /** @type {HTMLElement} */ (document.getElementById("toasts"));
  render(repeat(toasts, (each) => each.id, (each) => html`
    <div class="toast"><bdi>${each.text}</bdi>
      ${each.undo ? html`<button @click=${() => { drop(each.id); each.undo?.(); }}>Take back</button>` : nothing}
    </div>`), place);
}
