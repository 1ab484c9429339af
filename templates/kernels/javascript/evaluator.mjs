// Runs cells in this process, one at a time.

import { createRequire, isBuiltin } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";
import vm from "node:vm";

import { IMPORT, scriptOf } from "./source.mjs";

/** What a cell that was interrupted ends with. */
class Interrupted extends Error {
  constructor() {
    super("the cell was interrupted");
    this.name = "Interrupted";
    this.stack = `${this.name}: ${this.message}`;
  }
}

export class Evaluator {
  /** Ends the wait for the cell that runs. */
  #end = () => {};
  #cells = 0;

  constructor() {
    define(IMPORT, { value: importFromHere, enumerable: false });
    define("require", { value: requireFromHere, enumerable: false });
    define("module", { value: { exports: {} }, enumerable: false });
    define("exports", { value: globalThis.module.exports, enumerable: false });
    Object.defineProperty(globalThis, "__dirname", { get: () => process.cwd(), configurable: true });
    Object.defineProperty(globalThis, "__filename", { get: () => here("js"), configurable: true });
  }

  /** `{ value }` or `{ thrown }`. */
  async run(code) {
    const interrupted = new Promise((_, reject) => {
      this.#end = () => reject(new Interrupted());
    });
    interrupted.catch(() => {});
    try {
      const { text, names, waits } = scriptOf(code);
      names.forEach(makeAssignable);
      this.#cells += 1;
      const script = new vm.Script(text, { filename: `cell-${this.#cells}.js` });
      // A signal ends it, however busy it is.
      const value = script.runInThisContext({ breakOnSigint: true, displayErrors: false });
      return { value: waits ? await Promise.race([value, interrupted]) : value };
    } catch (error) {
      const thrown = error?.code === "ERR_SCRIPT_EXECUTION_INTERRUPTED" ? new Interrupted() : error;
      return { thrown };
    } finally {
      this.#end = () => {};
    }
  }

  /** Ends the cell that waits; one that computes is ended by the signal itself. */
  interrupt() {
    this.#end();
  }
}

function define(name, property) {
  Object.defineProperty(globalThis, name, { writable: true, configurable: true, enumerable: true, ...property });
}

/**
 * `const crypto = require("crypto")` means the cell's own variable, although
 * Node has one of that name, which cannot be assigned to.
 */
function makeAssignable(name) {
  const property = Object.getOwnPropertyDescriptor(globalThis, name);
  if (property?.configurable && !("value" in property && property.writable)) {
    define(name, { value: undefined });
  }
}

const here = (extension) => path.join(process.cwd(), `cell.${extension}`);

/** `import`, with names that are resolved from the directory in force. */
async function importFromHere(name, options) {
  return import(resolved(String(name)), options);
}

/** What a module exports by that name; as of a module, it is an error if there is none. */
importFromHere.named = (module, name) => {
  if (name in module) {
    return module[name];
  }
  // Modules of the older kind export one object.
  if (module.default !== null && typeof module.default === "object" && name in module.default) {
    return module.default[name];
  }
  throw new SyntaxError(`The requested module does not provide an export named '${name}'`);
};

importFromHere.meta = {
  get dirname() {
    return process.cwd();
  },
  get filename() {
    return here("mjs");
  },
  get url() {
    return pathToFileURL(here("mjs")).href;
  },
  resolve: (name) => resolved(name),
};

function resolved(name) {
  if (isBuiltin(name) || /^(data|file):/.test(name)) {
    return name;
  }
  const from = pathToFileURL(here("mjs")).href;
  try {
    return import.meta.resolve(name, from);
  } catch (error) {
    try {
      // Also what was installed for everybody.
      return pathToFileURL(createRequire(from).resolve(name)).href;
    } catch {
      throw error;
    }
  }
}

/** `require`, with names that are resolved from the directory in force. */
function requireFromHere(name) {
  return createRequire(here("js"))(name);
}

Object.defineProperties(requireFromHere, {
  resolve: { value: (name, options) => createRequire(here("js")).resolve(name, options) },
  cache: { get: () => createRequire(here("js")).cache },
});
