// What cases share.

import assert from "node:assert/strict";

/** No cell takes longer than that, however busy the machine is. */
export const BOUND_MS = 240_000;

/** Runs a cell that must not fail. */
export async function run(box, code, options = {}) {
  const execution = await box.runCode(code, { timeoutMs: BOUND_MS, ...options });
  assert.equal(execution.error, undefined, `${execution.error?.name}: ${execution.error?.value}\n${execution.error?.traceback}`);
  return execution;
}

/** Runs a cell that must fail, and gives its error. */
export async function fail(box, code, options = {}) {
  const execution = await box.runCode(code, { timeoutMs: BOUND_MS, ...options });
  assert.ok(execution.error, `no error, but ${JSON.stringify(execution)}`);
  return execution.error;
}

export const printed = (execution) => execution.logs.stdout.join("");
export const complained = (execution) => execution.logs.stderr.join("");

/** The only result of a cell. */
export async function only(box, code, options) {
  const { results } = await run(box, code, options);
  assert.equal(results.length, 1, JSON.stringify(results));
  return results[0];
}
