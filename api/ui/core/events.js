/** Server-sent events out of a response: `fetch` in place of EventSource, which sends no header. */

/** @param {Response} response @returns {AsyncGenerator<{event: string, id: string, data: string}>} */
export async function* events(response) {
  const reader = /** @type {any} */ (response.body).pipeThrough(new TextDecoderStream()).getReader();
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
