// Values as results: text for everything, other kinds for what brings them.

import { inspect } from "node:util";

/** An object with a method of this name says itself how it is shown. */
const DISPLAY = Symbol.for("Jupyter.display");

/** What `display.KIND(value)` shows, by kind. */
const KINDS = {
  text: "text/plain",
  html: "text/html",
  markdown: "text/markdown",
  svg: "image/svg+xml",
  png: "image/png",
  jpeg: "image/jpeg",
  pdf: "application/pdf",
  latex: "text/latex",
  json: "application/json",
  javascript: "application/javascript",
};

/** The MIME bundle of a value. */
export function resultOf(value) {
  const own = value !== null && typeof value === "object" ? value[DISPLAY] : undefined;
  if (typeof own === "function") {
    try {
      const bundle = own.call(value);
      if (bundle !== null && typeof bundle === "object") {
        return { ...bundle };
      }
    } catch {
      // Shown as any other value.
    }
  }
  try {
    return { "text/plain": inspect(value) };
  } catch {
    return { "text/plain": "[a value that cannot be shown]" };
  }
}

/** Gives cells `display(value)` and `display.html(text)` and so on. */
export function installDisplay(publish) {
  const display = (value) => publish(resultOf(value));
  for (const [kind, type] of Object.entries(KINDS)) {
    display[kind] = (value) => publish({ [type]: content(value) });
  }
  display.mime = (bundle) => publish({ ...bundle });
  globalThis.display = display;
}

/** Bytes are base64 in a result. */
function content(value) {
  return value instanceof Uint8Array ? Buffer.from(value).toString("base64") : value;
}
