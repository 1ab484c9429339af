// The other languages.

import assert from "node:assert/strict";

import { complained, fail, printed, run } from "./asking.mjs";

export const languages = [
  {
    name: "javascript",
    work: async (box) => {
      const language = "javascript";
      const execution = await run(box, "console.log('Hello, World!'); console.error('oh'); await Promise.resolve(6 * 7)", { language });
      assert.deepEqual([printed(execution), complained(execution), execution.text], ["Hello, World!\n", "oh\n", "42"]);
      await run(box, "import fs from 'fs'; const kept = 1; fs.writeFileSync('written.json', JSON.stringify({ kept }))", { language });
      assert.equal(await box.files.read("/home/user/written.json"), '{"kept":1}');
      assert.equal((await run(box, "const kept = 2; kept", { language })).text, "2");
      const error = await fail(box, "throw new TypeError('bad')", { language });
      assert.deepEqual([error.name, error.value], ["TypeError", "bad"]);
      assert.equal((await run(box, "process.env.GLOBAL_ONE", { language })).text, "one of the sandbox");
    },
  },
  {
    name: "typescript",
    work: async (box) => {
      const code = "interface User { name: string }\nconst user: User = { name: 'Ada' }\nuser.name as string";
      assert.equal((await run(box, code, { language: "typescript" })).text, "Ada");
    },
  },
  {
    name: "bash",
    work: async (box) => {
      const language = "bash";
      await run(box, "kept=6", { language });
      assert.equal(printed(await run(box, "echo $((kept * 7))", { language })).trim(), "42");
    },
  },
  {
    name: "r",
    least: "full",
    work: async (box) => {
      const { results } = await run(box, "sum(c(1, 2, 3))", { language: "r" });
      assert.deepEqual(results.map(({ text }) => text), ["[1] 6"]);
      assert.match((await fail(box, "nowhere", { language: "r" })).value, /not found/);
    },
  },
  {
    name: "java",
    least: "full",
    work: async (box) => {
      const execution = await run(box, 'System.out.println("Hello, World!");', { language: "java" });
      assert.equal(printed(execution).trim(), "Hello, World!");
      assert.match((await run(box, "6 * 7", { language: "java" })).text, /42/);
    },
  },
];
