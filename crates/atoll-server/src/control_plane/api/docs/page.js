// Shows the document and calls what it describes. Texts go in as texts, never as HTML.
"use strict";

const OUTPUT_MAX = 200000;

function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// An example of a schema: the required fields, or all of few.
function example(schema, all, depth = 0) {
  if (!schema || depth > 6) return null;
  if (schema.$ref) return example(all[schema.$ref.split("/").pop()], all, depth + 1);
  const type = Array.isArray(schema.type) ? schema.type[0] : schema.type;
  if (schema.enum) return schema.enum[0];
  if (type === "object") {
    const fields = {};
    for (const name of schema.required || []) fields[name] = example(schema.properties[name], all, depth + 1);
    return fields;
  }
  if (type === "array") return [];
  if (type === "integer" || type === "number") return 0;
  if (type === "boolean") return false;
  return type === "string" ? "" : null;
}

const EXAMPLES = {
  executeInSandbox: { code: "print(1 + 1)" },
  executeInSession: { code: "print(1 + 1)" },
  createSession: { agent_id: "agent-1", task_id: "task-1" },
  createSandbox: { template: "base", timeout_s: 300 },
  installPackages: { manager: "pip", packages: ["numpy"] },
  startProcess: { command: "python3 -m http.server 8000" },
  writeFile: { path: "hello.txt", content: "hello" },
};

async function show(response, into) {
  into.textContent = `${response.status} ${response.statusText}\n\n`;
  const type = response.headers.get("content-type") || "";
  if (type.includes("event-stream")) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done || into.textContent.length > OUTPUT_MAX) return;
      into.textContent += value;
    }
  }
  const text = (await response.text()).slice(0, OUTPUT_MAX);
  try {
    into.textContent += JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    into.textContent += text;
  }
}

function headers(operation) {
  const found = {};
  const key = document.getElementById("key").value.trim();
  const agent = document.getElementById("agent").value.trim();
  if (key) found["X-API-Key"] = key;
  if (agent) found["Atoll-Agent-Id"] = agent;
  if (operation.requestBody) found["Content-Type"] = Object.keys(operation.requestBody.content)[0];
  return found;
}

function form(method, path, operation, schemas) {
  const fields = (operation.parameters || []).filter((one) => one.in !== "header");
  const inputs = fields.map((field) => [field, element("input", { required: field.required })]);
  const made = element("form", {});
  for (const [field, input] of inputs) {
    input.title = field.description || "";
    input.placeholder = field.description || "";
    made.append(element("label", {}, element("span", {}, field.name), input));
  }
  let body = null;
  if (operation.requestBody) {
    const content = operation.requestBody.content["application/json"];
    const text = content ? EXAMPLES[operation.operationId] || example(content.schema, schemas) : null;
    body = element("textarea", { value: text ? JSON.stringify(text, null, 2) : "", spellcheck: false });
    made.append(element("label", {}, element("span", {}, "body"), body));
  }
  const answer = element("pre", { hidden: true });
  made.append(element("button", { type: "submit" }, "Call"), answer);
  made.addEventListener("submit", async (event) => {
    event.preventDefault();
    let target = path;
    const query = new URLSearchParams();
    for (const [field, input] of inputs) {
      if (field.in === "path") target = target.replace(`{${field.name}}`, encodeURIComponent(input.value));
      else if (input.value) query.set(field.name, input.value);
    }
    if (query.size) target += `?${query}`;
    answer.hidden = false;
    answer.textContent = "…";
    try {
      const options = { method, headers: headers(operation), body: body ? body.value : undefined };
      await show(await fetch(target, options), answer);
    } catch (error) {
      answer.textContent = String(error);
    }
  });
  return made;
}

async function main() {
  const response = await fetch("/api/v1/openapi.json");
  const described = await response.json();
  document.getElementById("version").textContent = `${described.info.version} · /api/v1`;
  const groups = new Map();
  for (const [path, methods] of Object.entries(described.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const tag = operation.tags[0];
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push([method.toUpperCase(), path, operation]);
    }
  }
  const into = document.getElementById("operations");
  into.textContent = "";
  for (const tag of ["sessions", "sandboxes", "executions", "processes", "files", "grants", "usage", "admin", "about"]) {
    into.append(element("h2", {}, tag));
    for (const [method, path, operation] of groups.get(tag) || []) {
      const line = element("summary", {},
        element("span", { className: "method" }, method),
        element("span", { className: "path" }, path),
        element("span", { className: "summary" }, operation.summary));
      const one = element("details", {}, line);
      one.addEventListener("toggle", () => {
        if (one.open && one.children.length === 1) {
          one.append(form(method, path, operation, described.components.schemas));
        }
      });
      into.append(one);
    }
  }
}

main().catch((error) => {
  document.getElementById("operations").textContent = `The document cannot be read: ${error}`;
});
