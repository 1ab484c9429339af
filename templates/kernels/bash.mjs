// A Jupyter kernel for Bash: one shell, in which cells run one after another.
//
// `bash/shell.mjs` has the shell. One that ends, by `exit` or because of
// `set -e`, is an error that says so, and the next cell has a new one.

import { execFileSync } from "node:child_process";

import { Shell } from "./bash/shell.mjs";
import { Kernel } from "./kernel.mjs";
import { Output } from "./output.mjs";

const kernel = new Kernel();
const output = new Output((name, text) => kernel.print(name, text));
const print = (name, text) => output.write(name, text);
let shell = new Shell(print);

/** An error without lines of its own: Bash has printed what there is to say. */
function failure(name, value) {
  return { error: { name, value, traceback: [`${name}: ${value}`] } };
}

await kernel.serve({
  language: {
    name: "bash",
    version: execFileSync("bash", ["-c", "echo -n $BASH_VERSION"], { encoding: "utf8" }),
    mimetype: "text/x-sh",
    file_extension: ".sh",
  },
  execute: async (code) => {
    const ended = await shell.run(code);
    output.flush();
    if ("gone" in ended) {
      shell = new Shell(print);
      return failure("ShellExited", `the shell ended with ${ended.gone}; its variables and functions are lost`);
    }
    return ended.status === 0 ? {} : failure("ExitStatus", String(ended.status));
  },
  interrupt: () => shell.interrupt(),
});
shell.kill();
process.exit(0);
