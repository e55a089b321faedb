/** What happens now, as the gateway streams it: rows by topic, and whether they are still true. */

import { Problem, session } from "./api.js";
import { Hub, take } from "./hub.js";
import { failed, skeleton } from "./parts.js";

/** Seconds after which a hidden page gives its topics up. */
const HIDDEN_S = 60;

const held = new Map();
let wanted = { topics: /** @type {string[]} */ ([]), project: /** @type {string|null} */ (null) };
let changed = () => {};
let send;
const leave = () => send?.(null);

export const live = {
  status: { ok: false, at: 0, detail: "", code: "" },
  /** How often the stream has come back after it was broken. */
  returns: 0,

  /** Whether what is shown may be out of date. */
  get stale() {
    return !this.status.ok && this.status.detail !== "";
  },

  /** The rows of a topic; null = none have come. @param {string} topic @returns {any[]|null} */
  rows(topic) {
    const rows = held.get(topic);
    return rows ? [...rows.values()] : null;
  },

  /** Whether the rows of a topic have come, or cannot come. @param {string} topic */
  settled(topic) {
    return held.has(topic) || this.stale;
  },

  /** @param {() => void} listener */
  start(listener) {
    changed = listener;
    let hidden = 0;
    addEventListener("visibilitychange", () => {
      clearTimeout(hidden);
      if (!document.hidden) wish();
      // Without a shared worker the visible tab alone streams.
      else hidden = setTimeout(leave, globalThis.SharedWorker ? HIDDEN_S * 1000 : 0);
    });
    addEventListener("pagehide", leave);
    addEventListener("pageshow", (event) => event.persisted && wish());
  },

  /** Ask for these topics. @param {string[]} topics @param {string|null} project null = the session's */
  want(topics, project) {
    const same = project === wanted.project && topics.every((topic) => wanted.topics.includes(topic));
    if (project !== wanted.project) held.clear();
    for (const topic of held.keys()) if (!topics.includes(topic)) held.delete(topic);
    if (same && topics.length === wanted.topics.length) return;
    wanted = { topics, project };
    wish();
  },

  stop: leave,
};

/** What stands where rows have not come. */
export const awaited = () => (live.stale ? failed(new Problem({ code: live.status.code, detail: live.status.detail })) : skeleton);

function wish() {
  send ??= connect();
  send({ ...wanted, half: session.half });
}
function connect() {
  if (globalThis.SharedWorker) {
    const worker = new SharedWorker(new URL("./live-worker.js", import.meta.url), { type: "module", name: "smore-live" });
    worker.port.onmessage = ({ data }) => told(data);
    return (each) => worker.port.postMessage(each);
  }
  const hub = new Hub();
  return (each) => hub.set(told, each);
}

function told(message) {
  const { status } = message;
  if (status) {
    const turned = status.ok !== live.status.ok;
    if (turned && status.ok && live.status.detail) live.returns += 1;
    live.status = status;
    if (turned) changed();
    return;
  }
  if (!wanted.topics.includes(message.topic)) return;
  take(held, message);
  changed();
}
