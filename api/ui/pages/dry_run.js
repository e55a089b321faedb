/** A question that is asked as somebody types: half a second after the last change, the one before is given up. */

const WAIT_MS = 500;
/** Seconds after which it is asked again where too many were asked, or nobody could answer. */
const AGAIN_S = 5;

export class DryRun {
  /** @param {(body: any, signal: AbortSignal) => Promise<any>} send @param {import("../core/page.js").Page} page */
  constructor(send, page) {
    this.send = send;
    this.page = page;
    this.answer = null;
    this.error = null;
    this.asks = false;
    /** In how many seconds it is asked again; 0 = it is not. */
    this.next_s = 0;
    this.timer = 0;
    this.over = new AbortController();
    page.signal.addEventListener("abort", () => this.stop());
  }

  stop() {
    clearTimeout(this.timer);
    this.over.abort();
    this.answer = this.error = null;
    this.asks = false;
  }

  ask(body, wait_ms = WAIT_MS) {
    clearTimeout(this.timer);
    this.over.abort();
    this.over = new AbortController();
    this.asks = true;
    this.timer = setTimeout(() => this.now(body, this.over.signal), wait_ms);
  }
  async now(body, signal) {
    this.next_s = 0;
    try {
      this.answer = await this.send(body, signal);
      this.error = null;
    } catch (error) {
      if (signal.aborted) return;
      this.answer = null;
      this.error = error;
      if (error.status === 429 || error.status === 503) {
        this.next_s = AGAIN_S;
        this.ask(body, AGAIN_S * 1000);
      }
    }
    this.asks = false;
    this.page.draw();
  }
}
