/** What a page gets from the frame: its address, its data, its actions. */

import { Problem, call } from "./api.js";
import { live } from "./live.js";
import { ask, toast } from "./dialog.js";
import { EVERY } from "./hub.js";
import { WINDOW } from "./parts.js";

/** @typedef {{data: any, error: any, at: number, reload: () => Promise<void>}} Loaded */
/** @typedef {{title: string, topics?: string[], view: () => any, ready?: () => boolean}} View */

export class Page {
  /** @param {{params: string[], me: any, draw: () => void, go: (address: string, replace?: boolean) => void}} of */
  constructor({ params, me, draw, go }) {
    this.params = params;
    this.me = me;
    this.draw = draw;
    this.go = go;
    this.over = new AbortController();
    this.signal = this.over.signal;
    /** What went wrong with an action, by the row that it was about. @type {Map<string, any>} */
    this.errors = new Map();
    this.busy = new Set();
    this.loads = [];
    /** How many rows of a long table are drawn. */
    this.rows = WINDOW;
  }

  query(name) {
    return new URLSearchParams(location.search).get(name) ?? "";
  }

  /** The parameters of these names. @param {string[]} names */
  queries(names) {
    return Object.fromEntries(names.map((each) => [each, this.query(each)]));
  }

  /** The same page with other parameters in its address. @param {Record<string, string>} changes */
  refine(changes) {
    const query = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries(changes)) value ? query.set(name, value) : query.delete(name);
    this.go(`${location.pathname}${query.size ? `?${query}` : ""}`, true);
  }

  /** The project that was chosen, EVERY for all of them; null = the session's own. */
  get project() {
    return this.query("project") || null;
  }

  /** The query of a list: of the project that was chosen, or of all. */
  get whose() {
    return this.project === EVERY ? { all_projects: true } : { project: this.project };
  }

  /** The project of the one thing that a page is about; null = the session's own. */
  get home() {
    return [EVERY, this.me.project].includes(this.project ?? EVERY) ? null : this.project;
  }

  /** Whether the session may do what needs the scope. @param {string} scope */
  may(scope) {
    return this.me.scopes.includes(scope);
  }

  /** Ask the gateway for as long as the page is there. @param {string} path @param {Record<string, any>} [query] */
  get(path, query) {
    return call("GET", path, { query, signal: this.signal });
  }

  /** Load something, now and whenever `reload` is called; every so many seconds while the page is visible.
   * @param {() => Promise<any>} ask @param {number} [every_s] @returns {Loaded} */
  load(ask, every_s = 0) {
    const loaded = { data: undefined, error: null, at: 0, reload: async () => {} };
    loaded.reload = async () => {
      try {
        loaded.data = await ask();
        loaded.error = null;
        loaded.at = Date.now();
      } catch (error) {
        if (this.signal.aborted) return;
        loaded.error = error;
        if (!(error instanceof Problem)) console.error(error);
      }
      if (!this.signal.aborted) this.draw();
    };
    this.loads.push(loaded);
    loaded.reload();
    if (every_s) this.every(every_s, () => loaded.reload());
    return loaded;
  }

  /** Call again and again while the page is visible. @param {number} every_s @param {() => any} task */
  every(every_s, task) {
    const timer = setInterval(() => document.hidden || task(), every_s * 1000);
    this.signal.addEventListener("abort", () => clearInterval(timer));
  }

  /** Whether everything that was asked for at first has come, or failed. */
  get settled() {
    return this.loads.every((each) => each.data !== undefined || each.error);
  }

  /** Do something, and say at the row what became of it; what would break promised ends only once it is confirmed.
   * @param {string} row @param {(query?: {anyway: true}) => Promise<any>} task @param {{done: (answer: any) => string, undo?: () => Promise<any>}} say */
  async act(row, task, { done, undo }) {
    this.errors.delete(row);
    this.busy.add(row);
    this.draw();
    try {
      const answer = await task().catch(async (problem) => {
        if (!(problem.body?.breaks && (await ask({ title: "Promised ends", action: "Do it anyway", danger: true, text: problem.message })))) throw problem;
        return task({ anyway: true });
      });
      const text = done(answer);
      toast(text, undo && (() => this.act(row, undo, { done: () => `Taken back: “${text}”` })));
    } catch (error) {
      this.errors.set(row, error);
    }
    this.busy.delete(row);
    this.draw();
    await Promise.all(this.loads.map((each) => each.reload()));
  }

  /** A button of an action: off while the page is stale. @param {string} row */
  off(row) {
    return live.stale || this.busy.has(row);
  }

  ask = ask;
}
