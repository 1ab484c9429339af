// What E2B's code-interpreter SDK for JavaScript does with a sandbox that runs code.
//
//   run.mjs [NAME …]
//
// As `run.py`: `INTERPRETER_TEMPLATE`, `INTERPRETER_KIND`, and `ok NAME` or
// `not ok NAME` for each case whose name contains a NAME. `INTERPRETER_PACKAGE` is
// the package to use, and whether the first version's cases are enough.

import { cells } from "./cells.mjs";
import { contexts } from "./contexts.mjs";
import { languages } from "./languages.mjs";
import { results } from "./results.mjs";

const KINDS = ["tiny", "slim", "full"];

const name = process.env.INTERPRETER_PACKAGE ?? "@e2b/code-interpreter";
const sdk = await import(name);
const isFirst = name !== "@e2b/code-interpreter";
const kind = KINDS.indexOf(process.env.INTERPRETER_KIND);
const wanted = process.argv.slice(2);
let failed = 0;

const box = await sdk.Sandbox.create(process.env.INTERPRETER_TEMPLATE, {
  timeoutMs: 3_600_000,
  envs: { GLOBAL_ONE: "one of the sandbox" },
});
try {
  for (const { name, work, least = "tiny", later = false } of [cells, results, contexts, languages].flat()) {
    const isWanted = wanted.length === 0 || wanted.some((part) => name.includes(part));
    if (KINDS.indexOf(least) > kind || !isWanted || (later && isFirst)) {
      continue;
    }
    try {
      await work(box, sdk);
      console.log(`ok ${name}`);
    } catch (error) {
      failed += 1;
      console.error(`${name}: ${error.stack}`);
      console.log(`not ok ${name}`);
    }
  }
} finally {
  await box.kill();
}
process.exit(failed > 0 ? 1 : 0);
