/** Lines that a program printed: text, without what colours a terminal. */

import { html } from "../vendor/lit-html/lit-html.js";
import { when } from "./format.js";

/** @param {any[]} lines */
export const printed = (lines) => html`<div class="log scroll" tabindex="0" role="region" aria-label="What it printed">
  ${lines.map((line) => html`<div class=${line.stream}>${when(line.at, true)} <bdi>${line.text.replace(/\x1b\[[0-9;?]*[ -/]*[@-~]/g, "")}</bdi></div>`)}</div>`;
