// Contexts, variables, directories, and cells that take too long.
// `later` marks what the first version of the SDK does not know.

import assert from "node:assert/strict";

import { fail, run } from "./asking.mjs";

export const contexts = [
  {
    name: "contexts do not know each other",
    work: async (box) => {
      const [one, other] = [await box.createCodeContext(), await box.createCodeContext({ cwd: "/tmp", language: "python" })];
      assert.deepEqual([other.language, other.cwd], ["python", "/tmp"]);
      await run(box, "mine = 1", { context: one });
      assert.equal((await fail(box, "mine", { context: other })).name, "NameError");
      assert.equal((await run(box, "mine", { context: one })).text, "1");
      assert.equal((await run(box, "import os; os.getcwd()", { context: other })).text, "/tmp");
    },
  },
  {
    name: "contexts are listed, restarted and removed",
    later: true,
    work: async (box, { NotFoundError }) => {
      const context = await box.createCodeContext({ cwd: "/tmp" });
      await run(box, "left = 1", { context });
      const listed = await box.listCodeContexts();
      assert.deepEqual(listed.at(-1), context);
      await box.restartCodeContext(context);
      assert.equal((await fail(box, "left", { context })).name, "NameError");
      assert.equal((await run(box, "import os; os.getcwd()", { context })).text, "/tmp");
      await box.removeCodeContext(context.id);
      assert.ok(!(await box.listCodeContexts()).some(({ id }) => id === context.id));
      await assert.rejects(box.runCode("1", { context }), NotFoundError);
      await assert.rejects(box.removeCodeContext(context), NotFoundError);
    },
  },
  {
    name: "variables of the sandbox stay and those of a cell do not",
    work: async (box) => {
      const code = "import os; [os.environ.get('OF_THE_CELL'), os.environ['GLOBAL_ONE']]";
      const envs = { OF_THE_CELL: "cell '\u00fc' \"$x\"", GLOBAL_ONE: "another" };
      assert.deepEqual((await run(box, code, { envs })).results[0].json, [envs.OF_THE_CELL, "another"]);
      assert.deepEqual((await run(box, code)).results[0].json, [null, "one of the sandbox"]);
    },
  },
  {
    name: "a cell that takes too long is interrupted",
    work: async (box, { TimeoutError }) => {
      const context = await box.createCodeContext();
      await run(box, "kept = 'kept'", { context });
      await assert.rejects(box.runCode("while True: pass", { context, timeoutMs: 2000 }), TimeoutError);
      assert.equal((await run(box, "kept", { context })).text, "kept");
    },
  },
  {
    name: "a kernel that ends is an error and another one is there",
    work: async (box) => {
      const context = await box.createCodeContext();
      const error = await fail(box, "import os\nos._exit(3)", { context });
      assert.ok(error.name && error.value, JSON.stringify(error));
      assert.equal((await run(box, "1 + 1", { context })).text, "2");
    },
  },
];
