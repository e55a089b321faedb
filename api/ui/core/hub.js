/** One live stream for all listeners: tabs of a SharedWorker, or the one tab where there is no such worker. */
// HTTP/1.1 gives a browser six connections to a host, so a stream in each tab would starve the seventh.

/** Seconds of silence after which the stream counts as broken: the gateway sends a comment every 15 s at least. */
const SILENT_S = 20;
/** Seconds without an event after which the rows are old, where a GPU instance reports every second. */
const OLD_S = 5;
/** Seconds between two tries. */
const AGAIN_S = 2;

/** In place of a project: all of them, for operators. */
export const EVERY = "*";

/** What names a row of a topic. @param {string} topic @param {any} row */
export const named = (topic, row) => (topic === "queues" ? `${row.project}/${row.function}` : row.id);

/** A listener's wish: its topics, whose project, the session's half (a worker has no localStorage). @typedef {{topics: string[], project: string|null, half: string|null}} Wish */

/** Change what is held of a topic: a snapshot replaces it. @param {Map<string, Map<string, any>>} held @param {any} change */
export function take(held, { topic, snapshot, rows, gone }) {
  const now = snapshot ? new Map() : (held.get(topic) ?? new Map());
  for (const row of rows) now.set(named(topic, row), row);
  for (const id of gone) now.delete(id);
  held.set(topic, now);
}

export class Hub {
  constructor() {
    /** @type {Map<(message: any) => void, Wish>} */
    this.listeners = new Map();
    /** @type {Map<string, Stream>} */
    this.streams = new Map();
  }

  /** @param {(message: any) => void} listener @param {Wish|null} wish null = it has left */
  set(listener, wish) {
    if (wish?.topics.length) this.listeners.set(listener, wish);
    else this.listeners.delete(listener);
    const wanted = new Map();
    for (const each of this.listeners.values()) {
      const key = JSON.stringify([each.project, each.half]);
      const topics = new Set([...(wanted.get(key)?.topics ?? []), ...each.topics]);
      wanted.set(key, { ...each, topics: [...topics].sort() });
    }
    for (const [key, stream] of this.streams) {
      const now = wanted.get(key);
      // A stream with more topics than are wanted goes on; it ends with its last listener.
      if (!now || now.topics.some((topic) => !stream.wish.topics.includes(topic))) {
        stream.over.abort();
        this.streams.delete(key);
      }
    }
    for (const [key, each] of wanted) {
      const stream = this.streams.get(key) ?? new Stream(each, (message) => this.tell(key, message));
      this.streams.set(key, stream);
      if (wish && key === JSON.stringify([wish.project, wish.half])) for (const message of stream.state()) listener(message);
    }
  }

  tell(key, message) {
    for (const [listener, wish] of this.listeners) {
      if (JSON.stringify([wish.project, wish.half]) !== key) continue;
      if (message.topic === undefined || wish.topics.includes(message.topic)) listener(message);
    }
  }
}

class Stream {
  constructor(wish, tell) {
    this.wish = wish;
    this.tell = tell;
    this.topics = new Map();
    this.status = { ok: false, at: 0, detail: "", code: "" };
    this.over = new AbortController();
    this.run();
  }

  /** What a listener that comes later needs. */
  state() {
    const snapshots = [...this.topics].map(([topic, rows]) => ({ topic, snapshot: true, rows: [...rows.values()], gone: [] }));
    return this.status.at || this.status.detail ? [{ status: this.status }, ...snapshots] : snapshots;
  }

  async run() {
    while (!this.over.signal.aborted) {
      try {
        await this.read();
        this.say("The gateway has ended the stream.", "ended");
      } catch (error) {
        if (this.over.signal.aborted) return;
        this.say(error.detail ?? "The gateway does not answer.", error.code ?? "unreachable");
        // Without a session there is nothing to try again.
        if (error.status === 401) return;
      }
      await new Promise((done) => setTimeout(done, AGAIN_S * 1000));
    }
  }

  async read() {
    const silence = new AbortController();
    const signal = AbortSignal.any([this.over.signal, silence.signal]);
    let timer = setTimeout(() => silence.abort(), SILENT_S * 1000);
    const watch = setInterval(() => this.look(), 1000);
    try {
      const query = new URLSearchParams({ topics: this.wish.topics.join(",") });
      if (this.wish.project === EVERY) query.set("all_projects", "true");
      else if (this.wish.project) query.set("project", this.wish.project);
      const headers = { Accept: "text/event-stream", "X-SMore-Session": this.wish.half ?? "" };
      const response = await fetch(`/v1/live?${query}`, { headers, signal });
      if (!response.ok) throw await response.json();
      for await (const { event, data } of events(response)) {
        clearTimeout(timer);
        timer = setTimeout(() => silence.abort(), SILENT_S * 1000);
        if (event !== "snapshot" && event !== "change") continue;
        const change = { gone: [], ...JSON.parse(data), snapshot: event === "snapshot" };
        take(this.topics, change);
        this.tell(change);
        this.say();
      }
    } finally {
      clearTimeout(timer);
      clearInterval(watch);
    }
  }

  /** The gateway is there, and may have nothing to tell because Redis is away. */
  look() {
    const reporting = [...(this.topics.get("gpus")?.values() ?? [])].some((gpu) => !gpu.silent_since);
    if (this.status.ok && reporting && Date.now() - this.status.at > OLD_S * 1000) this.say("The gateway learns nothing new.", "silent");
  }

  /** How it is; without a code all is well. */
  say(detail = "", code = "") {
    this.status = { ok: !code, at: code ? this.status.at : Date.now(), detail, code };
    this.tell({ status: this.status });
  }
}

/** Server-sent events out of a response: `fetch` in place of EventSource, which sends no header. @param {Response} response */
async function* events(response) {
  const reader = /** @type {ReadableStream} */ (response.body).pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = /** @type {string} */ (blocks.pop());
    for (const block of blocks) {
      const found = { event: "message", id: "", data: "" };
      for (const line of block.split("\n")) {
        const colon = line.indexOf(":");
        if (colon > 0) found[line.slice(0, colon)] = line.slice(colon + 1).trimStart();
      }
      // A comment alone is a sign of life.
      yield found;
    }
  }
}
