// Cells: what they print, what they give, how they fail, what stays.

import assert from "node:assert/strict";

import { complained, fail, printed, run } from "./asking.mjs";

export const cells = [
  {
    name: "an expression has a result",
    work: async (box) => {
      const execution = await run(box, "1 + 1");
      assert.equal(execution.text, "2");
      assert.deepEqual(execution.results.map(({ isMainResult, text }) => [isMainResult, text]), [[true, "2"]]);
      assert.equal((await run(box, "nothing = 1")).text, undefined);
    },
  },
  {
    name: "names stay and executions are counted",
    work: async (box) => {
      const context = await box.createCodeContext();
      await run(box, "kept = [1]", { context });
      await run(box, "kept.append(2)", { context });
      const execution = await run(box, "kept", { context });
      assert.deepEqual([execution.text, execution.executionCount], ["[1, 2]", 3]);
    },
  },
  {
    name: "output and complaints are apart and told",
    work: async (box) => {
      const told = { out: [], err: [] };
      const execution = await run(box, "import sys\nprint('out')\nprint('err', file=sys.stderr)", {
        onStdout: ({ line }) => told.out.push(line),
        onStderr: ({ line, error }) => told.err.push([line, error]),
      });
      assert.deepEqual([printed(execution), complained(execution)], ["out\n", "err\n"]);
      assert.deepEqual(told, { out: ["out\n"], err: [["err\n", true]] });
    },
  },
  {
    name: "output is told while the cell runs",
    work: async (box) => {
      await box.commands.run("rm -f /home/user/go-on");
      const seen = [];
      let begun;
      const waiting = new Promise((resolve) => {
        begun = resolve;
      });
      const running = run(
        box,
        "import os, time\nprint('waiting', flush=True)\nwhile not os.path.exists('/home/user/go-on'):\n    time.sleep(0.01)\nprint('gone on')",
        {
          onStdout: ({ line }) => {
            seen.push(line);
            begun();
          },
        },
      );
      await Promise.race([waiting, running]);
      assert.deepEqual(seen, ["waiting\n"]);
      await box.files.write("/home/user/go-on", "");
      assert.equal(printed(await running), "waiting\ngone on\n");
    },
  },
  {
    name: "every character arrives",
    work: async (box) => {
      const codes = [];
      for (let code = 0x20; code < 0xd800; code += 13) {
        codes.push(code);
      }
      for (let code = 0x1f300; code < 0x1f600; code += 1) {
        codes.push(code);
      }
      const text = String.fromCodePoint(...codes);
      const execution = await run(box, `print(''.join(map(chr, ${JSON.stringify(codes)})), end='')`);
      assert.equal(printed(execution), text);
    },
  },
  {
    name: "a lot of output arrives whole",
    work: async (box) => {
      const execution = await run(box, "for number in range(50_000): print(f'line {number}')");
      const lines = Array.from({ length: 50_000 }, (_, number) => `line ${number}\n`);
      assert.equal(printed(execution), lines.join(""));
    },
  },
  {
    name: "errors say what, why and where",
    work: async (box) => {
      const errors = [];
      const execution = await box.runCode("def divide(by):\n    return 1 / by\n\nprint('before')\ndivide(0)", {
        onError: (error) => errors.push(error.name),
      });
      const { name, value, traceback } = execution.error;
      assert.deepEqual([name, value, printed(execution), errors], ["ZeroDivisionError", "division by zero", "before\n", ["ZeroDivisionError"]]);
      assert.match(traceback, /return 1 \/ by/);
      assert.ok(!traceback.includes("\u001b"));
      assert.equal((await fail(box, "if True print(1)")).name, "SyntaxError");
      assert.equal((await run(box, "'alive'")).text, "alive");
    },
  },
];
