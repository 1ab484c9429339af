// A Jupyter kernel for JavaScript and TypeScript.
//
// `wire.mjs` speaks Jupyter's protocol, `source.mjs` turns a cell into what V8
// evaluates, `evaluator.mjs` runs it, `display.mjs` makes results of values.
// This file answers requests and knows which cell is running.
//
// Started with the path of a connection file.

import { readFileSync } from "node:fs";

import { Evaluator } from "./evaluator.mjs";
import { Output } from "./output.mjs";
import { Wire } from "./wire.mjs";
import { installDisplay, resultOf } from "./display.mjs";

const connection = JSON.parse(readFileSync(process.argv[2], "utf8"));
// What programs of cells see: themselves, as if started without arguments.
process.argv.splice(1);

const wire = new Wire(connection);
const output = new Output((name, text) => wire.publish("stream", { name, text }));
const evaluator = new Evaluator();
let executions = 0;

installDisplay((bundle) => {
  output.flush();
  wire.publish("display_data", { data: bundle, metadata: {}, transient: {} });
});

// A promise nobody waited for, a callback that threw: said, and the kernel lives on.
const stray = (kind) => (reason) => {
  const { name, value, traceback } = describe(reason);
  process.stderr.write(`${kind} ${traceback.length > 0 ? traceback.join("\n") : `${name}: ${value}`}\n`);
};
process.on("uncaughtException", stray("Uncaught"));
process.on("unhandledRejection", stray("Uncaught (in promise)"));
process.on("SIGINT", () => evaluator.interrupt());

const answers = {
  kernel_info_request: () => ({
    status: "ok",
    protocol_version: "5.3",
    implementation: "atoll-javascript",
    implementation_version: "1.0.0",
    language_info: {
      name: "javascript",
      version: process.versions.node,
      mimetype: "text/javascript",
      file_extension: ".js",
    },
    banner: `Node ${process.versions.node}`,
    help_links: [],
  }),
  execute_request: execute,
  is_complete_request: () => ({ status: "unknown" }),
  complete_request: ({ cursor_pos: position }) => ({
    status: "ok",
    matches: [],
    cursor_start: position,
    cursor_end: position,
    metadata: {},
  }),
  inspect_request: () => ({ status: "ok", found: false, data: {}, metadata: {} }),
  history_request: () => ({ status: "ok", history: [] }),
  comm_info_request: () => ({ status: "ok", comms: {} }),
  interrupt_request: () => {
    evaluator.interrupt();
    return { status: "ok" };
  },
  shutdown_request: ({ restart }) => ({ status: "ok", restart }),
};

async function execute({ code, silent = false, store_history: counted = true }) {
  if (!silent && counted) {
    executions += 1;
  }
  const number = executions;
  if (!silent) {
    wire.publish("execute_input", { code, execution_count: number });
  }
  const outcome = await evaluator.run(code);
  output.flush();
  if ("thrown" in outcome) {
    const { name, value, traceback } = describe(outcome.thrown);
    const content = { ename: name, evalue: value, traceback };
    if (!silent) {
      wire.publish("error", content);
    }
    return { status: "error", execution_count: number, ...content };
  }
  if (!silent && outcome.value !== undefined) {
    const data = resultOf(outcome.value);
    wire.publish("execute_result", { data, metadata: {}, execution_count: number });
  }
  return { status: "ok", execution_count: number, payload: [], user_expressions: {} };
}

/** What was thrown, as Jupyter tells it. Whatever it is, this does not throw. */
function describe(thrown) {
  try {
    if (thrown !== null && typeof thrown === "object" && "message" in thrown) {
      const stack = typeof thrown.stack === "string" ? thrown.stack : "";
      const own = new URL(".", import.meta.url).href;
      const lines = stack
        .split("\n")
        .filter((line) => !line.includes(own) && !/\((node:inspector|node:internal|node:vm)/.test(line));
      return {
        name: String(thrown.name ?? "Error"),
        value: String(thrown.message),
        traceback: lines.filter((line) => line !== ""),
      };
    }
    const text = resultOf(thrown)["text/plain"];
    return { name: "Error", value: text, traceback: [`Uncaught ${text}`] };
  } catch {
    return { name: "Error", value: "what was thrown cannot be shown", traceback: [] };
  }
}

await wire.serve(async ({ type, content }) => {
  const answer = answers[type];
  return answer === undefined ? undefined : answer(content);
});
process.exit(0);
