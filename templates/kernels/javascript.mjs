// A Jupyter kernel for JavaScript and TypeScript.
//
// `javascript/source.mjs` turns a cell into a script, `javascript/evaluator.mjs`
// runs it, `javascript/display.mjs` makes results of values.

import { Evaluator } from "./javascript/evaluator.mjs";
import { installDisplay, resultOf } from "./javascript/display.mjs";
import { Kernel } from "./kernel.mjs";
import { Output } from "./output.mjs";

const kernel = new Kernel();
// What programs of cells see: themselves, as if started without arguments.
process.argv.splice(1);

const output = new Output((name, text) => kernel.print(name, text));
for (const name of ["stdout", "stderr"]) {
  const decoder = new TextDecoder();
  process[name].write = (chunk, encoding, callback) => {
    const done = typeof encoding === "function" ? encoding : callback;
    output.write(name, typeof chunk === "string" ? chunk : decoder.decode(chunk, { stream: true }));
    if (typeof done === "function") {
      process.nextTick(done);
    }
    return true;
  };
}
installDisplay((bundle) => {
  output.flush();
  kernel.show(bundle);
});

// A promise nobody waited for, a callback that threw: said, and the kernel lives on.
const stray = (kind) => (reason) => {
  const { name, value, traceback } = described(reason);
  const text = traceback.length > 0 ? traceback.join("\n") : `${name}: ${value}`;
  process.stderr.write(`${kind} ${text}\n`);
};
process.on("uncaughtException", stray("Uncaught"));
process.on("unhandledRejection", stray("Uncaught (in promise)"));

const evaluator = new Evaluator();

/** What was thrown, as Jupyter tells it. Whatever it is, this does not throw. */
function described(thrown) {
  try {
    if (thrown !== null && typeof thrown === "object" && "message" in thrown) {
      const stack = typeof thrown.stack === "string" ? thrown.stack : "";
      const own = new URL(".", import.meta.url).href;
      const isOwn = (line) => line.includes(own) || /\(?node:(internal|vm)/.test(line);
      return {
        name: String(thrown.name ?? "Error"),
        value: String(thrown.message),
        traceback: stack.split("\n").filter((line) => line !== "" && !isOwn(line)),
      };
    }
    const text = resultOf(thrown)["text/plain"];
    return { name: "Error", value: text, traceback: [`Uncaught ${text}`] };
  } catch {
    return { name: "Error", value: "what was thrown cannot be shown", traceback: [] };
  }
}

await kernel.serve({
  language: {
    name: "javascript",
    version: process.versions.node,
    mimetype: "text/javascript",
    file_extension: ".js",
  },
  execute: async (code) => {
    const outcome = await evaluator.run(code);
    output.flush();
    if ("thrown" in outcome) {
      return { error: described(outcome.thrown) };
    }
    return { result: outcome.value === undefined ? undefined : resultOf(outcome.value) };
  },
  interrupt: () => evaluator.interrupt(),
});
process.exit(0);
