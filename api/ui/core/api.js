/** The gateway's REST API, and the half of the session that this page keeps. */

const HALF = "smore.session";

/** An error as the gateway answers it (RFC 9457), or `unreachable` where it does not answer. */
export class Problem extends Error {
  /** @param {{status?: number, code: string, detail: string, request_id?: string, [more: string]: any}} body */
  constructor(body) {
    super(body.detail);
    this.status = body.status ?? 0;
    this.code = body.code;
    this.requestId = body.request_id ?? "";
    this.body = body;
  }
}

/** A path whose parts are encoded: path`/v1/gpus/${id}/pause`.
 * @param {TemplateStringsArray} texts @param {...(string|number)} parts */
export const path = (texts, ...parts) => String.raw({ raw: texts }, ...parts.map(encodeURIComponent));

export const session = {
  get half() {
    return localStorage.getItem(HALF);
  },
  keep: (half) => localStorage.setItem(HALF, half),
  forget: () => localStorage.removeItem(HALF),
};

/** The query of a request; what is null or empty is left out.
 * @param {Record<string, any>} query */
export function encoded(query) {
  const left = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return left.length ? `?${new URLSearchParams(left.map(([name, value]) => [name, String(value)]))}` : "";
}

/** Ask the gateway; a Blob goes as its bytes, anything else as JSON. Returns the answer's JSON, null where it has no body. Throws Problem.
 * @param {string} method @param {string} path
 * @param {{query?: Record<string, any>, body?: any, more?: Record<string, string>, signal?: AbortSignal}} [options] `more`: headers
 * @returns {Promise<any>} */
export async function call(method, path, { query = {}, body, more = {}, signal } = {}) {
  const headers = { Accept: "application/json", ...more };
  const bytes = body instanceof Blob;
  if (session.half) headers["X-SMore-Session"] = session.half;
  if (body !== undefined) headers["Content-Type"] = bytes ? "application/octet-stream" : "application/json";
  let response;
  let text;
  try {
    response = await fetch(path + encoded(query), { method, headers, body: bytes ? body : JSON.stringify(body), signal });
    text = await response.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem({ code: "unreachable", detail: "The gateway does not answer." });
  }
  if (response.ok) return text ? JSON.parse(text) : null;
  let problem;
  try {
    problem = new Problem(JSON.parse(text));
  } catch {
    problem = new Problem({ status: response.status, code: "unreadable", detail: `The answer was ${response.status}.` });
  }
  if (problem.status === 401 && !location.pathname.startsWith("/ui/login")) {
    session.forget();
    location.assign(`/ui/login${encoded({ to: location.pathname + location.search })}`);
  }
  throw problem;
}
