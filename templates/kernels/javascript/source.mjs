// A cell, as its author writes it, made into a script.
//
// - Types are taken away.
// - What is declared at the top can be declared again by another cell, in any
//   way: it becomes a variable of the global object. That `const` is one is
//   forgotten; notebooks are run again and again.
// - Modules are imported by calls.
// - A cell with `await` at the top becomes an asynchronous function.
//
// Text is changed in place, so that lines in error messages are those of the cell.

import { stripTypeScriptTypes } from "node:module";

import { parse } from "acorn";
import { full, simple } from "acorn-walk";

/** What takes the place of `import` in a script. */
export const IMPORT = "__atoll_import__";

const OPTIONS = {
  ecmaVersion: "latest",
  sourceType: "module",
  allowAwaitOutsideFunction: true,
  allowHashBang: true,
};

/** As a script, not a module: names such as `await` and sloppy code are fine in it. */
const SLOPPY = { ...OPTIONS, sourceType: "script", allowImportExportEverywhere: true };

/**
 * The script of a cell, the global variables that it declares, and whether its
 * value is a promise of the cell's value.
 */
export function scriptOf(code) {
  const readings = [
    () => code,
    () => stripTypeScriptTypes(code),
    () => stripTypeScriptTypes(code, { mode: "transform" }),
  ];
  for (const reading of readings) {
    for (const options of [SLOPPY, OPTIONS]) {
      try {
        const text = reading();
        return new Rewriting(text, parse(text, options)).script();
      } catch (error) {
        if (!(error instanceof SyntaxError)) {
          throw error;
        }
      }
    }
  }
  // V8 says best what is wrong with it.
  return { text: code, names: [], waits: false };
}

class Rewriting {
  #text;
  #program;
  #changes = [];
  #names = new Set();
  /** Functions of an asynchronous cell, which are there before its first line. */
  #functions = [];

  constructor(text, program) {
    this.#text = text;
    this.#program = program;
  }

  script() {
    const waits = waitsAtTheTop(this.#program);
    for (const node of this.#program.body) {
      this.#statement(node, waits);
    }
    simple(this.#program, {
      ImportExpression: ({ start }) => this.#change(start, start + "import".length, IMPORT),
      MetaProperty: ({ meta, start, end }) => {
        if (meta.name === "import") {
          this.#change(start, end, `${IMPORT}.meta`);
        }
      },
    });
    const names = [...this.#names];
    if (!waits) {
      return { text: this.#changed(0, this.#text.length), names, waits };
    }
    const last = this.#program.body.at(-1);
    if (last?.type === "ExpressionStatement") {
      this.#change(last.expression.start, last.expression.start, "return (");
      this.#change(last.expression.end, last.expression.end, "\n)");
    }
    const declared = names.length > 0 ? `var ${names.join(", ")};` : "";
    const functions = this.#functions.map(
      ({ id, start, end }) => `${id.name} = ${this.#changed(start, end)};`,
    );
    // Functions were moved behind the cell's own lines.
    for (const { start, end } of this.#functions) {
      this.#changes = this.#changes.filter((change) => change.start < start || change.end > end);
      this.#change(start, end, blank(this.#text.slice(start, end)));
    }
    const body = this.#changed(0, this.#text.length);
    const text = `${declared} (async (begin) => { begin(); ${body}\n})(() => {${functions.join("\n")}\n})`;
    return { text, names, waits };
  }

  #statement(node, waits) {
    switch (node.type) {
      case "ImportDeclaration":
        this.#change(node.start, node.end, this.#imported(node));
        break;
      case "ExportNamedDeclaration":
      case "ExportDefaultDeclaration":
        if (node.declaration) {
          this.#change(node.start, node.declaration.start, "");
          this.#statement(node.declaration, waits);
        } else {
          this.#change(node.start, node.end, blank(this.#text.slice(node.start, node.end)));
        }
        break;
      case "ExportAllDeclaration":
        this.#change(node.start, node.end, blank(this.#text.slice(node.start, node.end)));
        break;
      case "VariableDeclaration":
        this.#variables(node, waits);
        break;
      case "ClassDeclaration":
        if (node.id) {
          this.#names.add(node.id.name);
          this.#change(node.start, node.start, waits ? `;${node.id.name} = ` : `var ${node.id.name} = `);
          this.#change(node.end, node.end, ";");
        }
        break;
      case "FunctionDeclaration":
        if (node.id) {
          this.#names.add(node.id.name);
          if (waits) {
            this.#functions.push(node);
          }
        }
        break;
    }
  }

  #variables({ kind, declarations, start, end }, waits) {
    if (kind.includes("using")) {
      return;
    }
    for (const { id } of declarations) {
      namesOf(id).forEach((name) => this.#names.add(name));
    }
    const first = declarations[0].start;
    if (!waits) {
      this.#change(start, first, `var ${blank(this.#text.slice(start, first))}`);
      // Without a value, `let` empties what an earlier cell has left there.
      if (kind === "let") {
        declarations.filter(({ init }) => !init).forEach((node) => this.#change(node.end, node.end, " = undefined"));
      }
      return;
    }
    this.#change(start, first, `;void (${blank(this.#text.slice(start, first))}`);
    for (const node of declarations) {
      const value = node.init ? "" : kind === "var" ? "" : " = undefined";
      this.#change(node.start, node.start, "(");
      this.#change(node.end, node.end, `${value})`);
    }
    const terminated = this.#text[end - 1] === ";";
    this.#change(terminated ? end - 1 : end, end, ");");
  }

  /** `import …` as an assignment, on as many lines. */
  #imported({ specifiers, source, attributes, start, end }) {
    const given = (attributes ?? []).map(
      ({ key, value }) => `${JSON.stringify(key.name ?? key.value)}: ${value.raw}`,
    );
    const options = given.length > 0 ? `, { with: { ${given.join(", ")} } }` : "";
    const targets = specifiers.map(({ type, imported, local }) => {
      this.#names.add(local.name);
      switch (type) {
        case "ImportNamespaceSpecifier":
          return `${local.name} = module`;
        case "ImportDefaultSpecifier":
          return `${local.name} = module.default`;
        default:
          return `${local.name} = ${IMPORT}.named(module, ${JSON.stringify(imported.name ?? imported.value)})`;
      }
    });
    const call = `${IMPORT}(${source.raw}${options})`;
    const lines = blank(this.#text.slice(start, end));
    return `;((module) => { ${targets.join("; ")} })(await ${call});${lines}`;
  }

  #change(start, end, by) {
    this.#changes.push({ start, end, by, order: this.#changes.length });
  }

  /** A part of the text, with its changes. */
  #changed(start, end) {
    const changes = this.#changes
      .filter((change) => change.start >= start && change.end <= end)
      .sort((one, other) => one.start - other.start || one.end - other.end || one.order - other.order);
    let text = "";
    let position = start;
    for (const change of changes) {
      text += this.#text.slice(position, change.start) + change.by;
      position = Math.max(position, change.end);
    }
    return text + this.#text.slice(position, end);
  }
}

/** Whether an `import`, or an `await` that is in no function, makes the cell wait. */
function waitsAtTheTop(program) {
  if (program.body.some(({ type }) => type === "ImportDeclaration")) {
    return true;
  }
  const functions = [];
  const waits = [];
  full(program, (node) => {
    if (/Function/.test(node.type)) {
      functions.push(node);
    } else if (node.type === "AwaitExpression" || (node.type === "ForOfStatement" && node.await)) {
      waits.push(node);
    }
  });
  return waits.some(
    (wait) => !functions.some((node) => node.start <= wait.start && wait.end <= node.end),
  );
}

/** Names that a pattern declares. */
function namesOf(pattern) {
  switch (pattern?.type) {
    case "Identifier":
      return [pattern.name];
    case "ObjectPattern":
      return pattern.properties.flatMap((property) => namesOf(property.value ?? property.argument));
    case "ArrayPattern":
      return pattern.elements.flatMap(namesOf);
    case "AssignmentPattern":
      return namesOf(pattern.left);
    case "RestElement":
      return namesOf(pattern.argument);
    default:
      return [];
  }
}

/** As many lines of nothing. */
function blank(text) {
  return "\n".repeat(text.split("\n").length - 1);
}
