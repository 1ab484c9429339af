// Results of every kind, and charts of every type.

import assert from "node:assert/strict";

import { only, printed, run } from "./asking.mjs";

const PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

const KINDS = {
  html: ["text/html", "<b>bold</b>"],
  markdown: ["text/markdown", "*a*"],
  svg: ["image/svg+xml", "<svg/>"],
  png: ["image/png", PNG],
  jpeg: ["image/jpeg", PNG],
  pdf: ["application/pdf", PNG],
  latex: ["text/latex", "$x^2$"],
  json: ["application/json", { a: [1, "\u00fc"] }],
  javascript: ["application/javascript", "alert(1)"],
};

const isPng = (text) => Buffer.from(text, "base64").subarray(1, 4).toString() === "PNG";

async function chart(box, code) {
  const { results } = await run(box, `import matplotlib.pyplot as plt\n${code}\nplt.show()`);
  const found = results.filter((result) => result.chart !== undefined);
  assert.equal(found.length, 1, JSON.stringify(results.map((result) => result.formats())));
  assert.ok(isPng(found[0].png));
  return found[0].chart;
}

export const results = [
  {
    name: "every kind arrives alone",
    work: async (box) => {
      for (const [name, [kind, value]] of Object.entries(KINDS)) {
        const result = await only(box, `display({${JSON.stringify(kind)}: ${JSON.stringify(value)}}, raw=True)`);
        assert.deepEqual([result.formats(), result[name], result.isMainResult], [[name], value, false]);
      }
    },
  },
  {
    name: "what is displayed is not the main result",
    work: async (box) => {
      const { results: shown } = await run(box, "display(1)\n2");
      assert.deepEqual(shown.map(({ text, isMainResult }) => [text, isMainResult]), [["1", false], ["2", true]]);
    },
  },
  {
    name: "other kinds are extra",
    work: async (box) => {
      const result = await only(box, "display({'x-own/kind': {'k': 1}}, raw=True)");
      // This SDK keeps them where it keeps everything that it was told.
      assert.deepEqual(result.raw.extra, { "x-own/kind": { k: 1 } });
    },
  },
  {
    name: "dictionaries are json and frames are data",
    work: async (box) => {
      const value = await only(box, "{'a': [1, None, '\u00fc']}");
      assert.deepEqual([value.json, value.text], [{ a: [1, null, "\u00fc"] }, "{'a': [1, None, '\u00fc']}"]);
      const frame = await only(box, "import pandas\npandas.DataFrame({'n': [1, 2], 't': pandas.to_datetime(['2026-01-02', None])})");
      assert.deepEqual(frame.data, { n: [1, 2], t: ["2026-01-02T00:00:00", null] });
      assert.match(frame.html, /<table/);
    },
  },
  {
    name: "images are shown",
    work: async (box) => {
      const result = await only(box, "from PIL import Image\nImage.new('RGB', (4, 3), 'red').save('red.png')");
      assert.ok(isPng(result.png));
    },
  },
  {
    name: "the sine plot",
    work: async (box) => {
      const execution = await run(
        box,
        "import numpy as np\nimport matplotlib.pyplot as plt\nx = np.linspace(0, 10, 100)\nplt.plot(x, np.sin(x), label='sin(x)')\nplt.title('Sine Wave')\nplt.legend()\nplt.grid(True)\nplt.show()\nprint(f'Generated {len(x)} data points')",
      );
      assert.equal(printed(execution), "Generated 100 data points\n");
      const [{ png, chart: sine }] = execution.results;
      assert.ok(isPng(png));
      assert.deepEqual([sine.type, sine.title, sine.elements[0].label, sine.elements[0].points.length], ["line", "Sine Wave", "sin(x)", 100]);
    },
  },
  {
    name: "charts of every type",
    work: async (box) => {
      const line = await chart(box, "plt.plot([1, 2], [3, 4]); plt.xlabel('Time (s)'); plt.xticks([1, 2])");
      assert.deepEqual(
        [line.type, line.x_label, line.x_unit, line.y_label, line.x_ticks, line.x_tick_labels, line.x_scale],
        ["line", "Time (s)", "s", null, [1, 2], ["1", "2"], "linear"],
      );
      assert.deepEqual(line.elements, [{ label: "Line 0", points: [[1, 3], [2, 4]] }]);
      const scatter = await chart(box, "plt.scatter([1], [2], label='s')");
      assert.deepEqual([scatter.type, scatter.elements], ["scatter", [{ label: "s", points: [[1, 2]] }]]);
      const bars = await chart(box, "plt.bar(['A'], [2], label='g')");
      assert.deepEqual([bars.type, bars.elements], ["bar", [{ label: "A", group: "g", value: 2 }]]);
      const pie = await chart(box, "plt.pie([1, 1], labels=['a', 'b'])");
      assert.deepEqual(pie.elements, [{ label: "a", angle: 180, radius: 1 }, { label: "b", angle: 180, radius: 1 }]);
      const boxes = await chart(box, "plt.boxplot([[1, 2, 3, 4, 5, 20]], tick_labels=['A'])");
      assert.deepEqual(
        [boxes.type, boxes.elements],
        ["box_and_whisker", [{ label: "A", min: 1, first_quartile: 2.25, median: 3.5, third_quartile: 4.75, max: 5, outliers: [20] }]],
      );
      const both = await chart(box, "f, (l, r) = plt.subplots(1, 2); l.plot([1]); r.imshow([[1]]); f.suptitle('Both')");
      assert.deepEqual([both.type, both.title, both.elements.map(({ type }) => type)], ["superchart", "Both", ["line", "unknown"]]);
    },
  },
];
