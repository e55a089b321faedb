/** The SharedWorker that holds the one live stream of all tabs. */

import { Hub } from "./hub.js";

const hub = new Hub();

addEventListener("connect", (event) => {
  const port = /** @type {MessageEvent} */ (event).ports[0];
  const tell = (message) => port.postMessage(message);
  port.onmessage = ({ data }) => hub.set(tell, data);
});
