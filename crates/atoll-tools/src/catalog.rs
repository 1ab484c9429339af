//! All tools.

use serde_json::json;

use crate::definition::{Effect, Tool, World, parse, schema};
use crate::tools::{
    execute_command, files, install_packages, processes, run_code, sandboxes, search_files,
};

macro_rules! tool {
    (
        $name:literal, $title:literal, $effect:ident, $world:ident,
        $arguments:path => $run:path => $result:path,
        $description:literal, $example:tt
    ) => {
        Tool {
            name: $name,
            title: $title,
            description: $description,
            effect: Effect::$effect,
            world: World::$world,
            arguments: schema::<$arguments>,
            result: schema::<$result>,
            example: || json!($example),
            run: |call, arguments| Box::pin(async move { $run(call, parse(arguments)?).await }),
        }
    };
}

/// All tools, in the order in which they are shown.
pub static TOOLS: &[Tool] = &[
    tool!(
        "run_code", "Run code", Destroys, Open,
        run_code::Arguments => run_code::run => run_code::Ran,
        "Runs code in a kernel inside an isolated Linux sandbox and returns what it printed, the value of \
         the last expression, and plots as images. Variables, imports and files stay for the next call. \
         An exception of the code is part of the result, not an error of the tool. Nothing of the user's \
         own machine is visible; use `write_file` to bring data in.",
        {"code": "import math\nmath.sqrt(2)", "language": "python", "timeout": 30}
    ),
    tool!(
        "execute_command", "Run a command", Destroys, Open,
        execute_command::Arguments => execute_command::run => execute_command::Ran,
        "Runs a shell command line in the sandbox to its end and returns its output and exit status. \
         A status other than 0 is part of the result. Each call is a new shell: use `cwd`, or `cd x && …`. \
         The user is `user`, with `sudo`. For servers and whatever does not end, use `start_process`.",
        {"command": "git --version && ls -la", "cwd": "/home/user", "timeout": 60}
    ),
    tool!(
        "start_process", "Start a process", Destroys, Open,
        processes::Start => processes::start => processes::Report,
        "Starts a command that goes on after this call: a server, a watcher, an interactive program. \
         Returns a `process_id` for `read_process`, `write_process` and `stop_process`.",
        {"command": "python3 -m http.server 8000"}
    ),
    tool!(
        "read_process", "Read from a process", Changes, Closed,
        processes::Read => processes::read => processes::Report,
        "Returns what a process of `start_process` wrote since the last call, and whether it still runs.",
        {"process_id": "p1", "wait": 5}
    ),
    tool!(
        "write_process", "Write to a process", Destroys, Open,
        processes::Write => processes::write => processes::Report,
        "Writes to the standard input of a process of `start_process`, and returns what it answers.",
        {"process_id": "p1", "input": "print(1 + 1)\n"}
    ),
    tool!(
        "stop_process", "Stop a process", Destroys, Closed,
        processes::Stop => processes::stop => processes::Report,
        "Ends a process of `start_process` with everything it started, and returns its last output.",
        {"process_id": "p1"}
    ),
    tool!(
        "read_file", "Read a file", Reads, Closed,
        files::Read => files::read => files::Content,
        "Reads a file of the sandbox, or a part of it: text as it is, PNG and JPEG as images, anything \
         else in base64. Long files come in parts: read on with `offset`.",
        {"path": "/home/user/data.csv", "offset": 0, "length": 16000}
    ),
    tool!(
        "write_file", "Write a file", Destroys, Closed,
        files::Write => files::write => files::Written,
        "Writes a file in the sandbox, and the directories above it. Replaces what was there.",
        {"path": "/home/user/hello.py", "content": "print('hello')\n"}
    ),
    tool!(
        "list_files", "List files", Reads, Closed,
        files::List => files::list => files::Directory,
        "Lists a directory of the sandbox with sizes and permissions.",
        {"path": "/home/user", "depth": 2}
    ),
    tool!(
        "search_files", "Search files", Reads, Closed,
        search_files::Arguments => search_files::run => search_files::Found,
        "Looks for text or a regular expression in files of the sandbox, or for files by name.",
        {"pattern": "def main", "path": "/home/user", "include": "*.py"}
    ),
    tool!(
        "install_packages", "Install packages", Changes, Open,
        install_packages::Arguments => install_packages::run => install_packages::Installed,
        "Installs packages in the sandbox with pip, npm or apt. Needs a sandbox with internet access.",
        {"manager": "pip", "packages": ["requests==2.32.5"]}
    ),
    tool!(
        "create_sandbox", "Create a sandbox", Changes, Closed,
        sandboxes::Create => sandboxes::create => sandboxes::Created,
        "Makes one more sandbox, empty and apart from all others. Not needed for most work: tools without \
         `sandbox_id` share one that is made on first use. Ends with this session.",
        {"template": "base", "metadata": {"purpose": "second opinion"}}
    ),
    tool!(
        "list_sandboxes", "List sandboxes", Reads, Closed,
        sandboxes::List => sandboxes::list => sandboxes::Sandboxes,
        "Lists the sandboxes that can be used, and which one is used by default.",
        {}
    ),
    tool!(
        "kill_sandbox", "End a sandbox", Destroys, Closed,
        sandboxes::Kill => sandboxes::kill => sandboxes::Killed,
        "Ends a sandbox now. Its files and processes are lost.",
        {"sandbox_id": "i1a2b3c4d5e6f7g8h9j0"}
    ),
    tool!(
        "preview_url", "Address of a port", Reads, Open,
        sandboxes::PreviewUrl => sandboxes::preview => sandboxes::Previewed,
        "Returns an address under which a port of the sandbox can be opened, for example in a browser. \
         Start a server on that port first with `start_process`; it should listen on 0.0.0.0.",
        {"port": 8000}
    ),
];

/// The tool of that name.
#[must_use]
pub(crate) fn find(name: &str) -> Option<&'static Tool> {
    TOOLS.iter().find(|tool| tool.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Map, Value};

    use super::*;

    /// Whether `value` is what `schema` says, for the few words that ours use.
    pub(crate) fn fits(schema: &Value, value: &Value) -> Result<(), String> {
        let words = [
            "type",
            "properties",
            "required",
            "additionalProperties",
            "items",
            "enum",
            "description",
            "default",
            "minimum",
            "maximum",
            "minItems",
            "maxItems",
        ];
        let object = schema.as_object().ok_or("a schema is an object")?;
        if let Some(word) = object.keys().find(|key| !words.contains(&key.as_str())) {
            return Err(format!("unknown word `{word}` in {schema}"));
        }
        if let Some(Value::Array(allowed)) = object.get("enum")
            && !allowed.contains(value)
        {
            return Err(format!("{value} is none of {allowed:?}"));
        }
        let kind = object
            .get("type")
            .and_then(Value::as_str)
            .ok_or("no type")?;
        let is_right = match kind {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            other => return Err(format!("unknown type {other}")),
        };
        if !is_right {
            return Err(format!("{value} is no {kind}"));
        }
        match value {
            Value::Object(fields) => {
                let none = Map::new();
                let properties = object.get("properties").and_then(Value::as_object);
                let properties = properties.unwrap_or(&none);
                for name in object
                    .get("required")
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten()
                {
                    let name = name.as_str().unwrap_or_default();
                    if !fields.contains_key(name) {
                        return Err(format!("`{name}` is missing"));
                    }
                }
                for (name, field) in fields {
                    match (properties.get(name), object.get("additionalProperties")) {
                        (Some(schema), _) => fits(schema, field)?,
                        (None, Some(schema)) if schema.is_object() => fits(schema, field)?,
                        (None, None | Some(Value::Bool(true))) if properties.is_empty() => {}
                        (None, _) => return Err(format!("`{name}` is unknown")),
                    }
                }
                Ok(())
            }
            Value::Array(items) => {
                let schema = object.get("items").ok_or("no items")?;
                items.iter().try_for_each(|item| fits(schema, item))
            }
            _ => Ok(()),
        }
    }

    #[test]
    fn every_tool_has_a_name_a_model_can_write_and_words_it_can_read() {
        let names: BTreeSet<&str> = TOOLS.iter().map(|tool| tool.name).collect();
        assert_eq!(names.len(), TOOLS.len());
        for tool in TOOLS {
            let is_name = |char: char| char.is_ascii_lowercase() || char == '_';
            assert!(tool.name.chars().all(is_name), "{}", tool.name);
            assert!(
                (20..=1024).contains(&tool.description.len()),
                "{}",
                tool.name
            );
            for (argument, schema) in (tool.arguments)()["properties"].as_object().unwrap() {
                let description = schema["description"].as_str().unwrap_or_default();
                assert!(!description.is_empty(), "{}.{argument}", tool.name);
            }
        }
    }

    #[test]
    fn every_example_fits_its_schema_and_nothing_else_does() {
        for tool in TOOLS {
            let schema = Value::Object((tool.arguments)());
            let example = (tool.example)();
            fits(&schema, &example).unwrap_or_else(|error| panic!("{}: {error}", tool.name));
            let mut strange = example.clone();
            strange["no_such_argument"] = json!(1);
            assert!(fits(&schema, &strange).is_err(), "{}", tool.name);
        }
    }

    #[test]
    fn schemas_say_nothing_that_only_some_models_understand() {
        for tool in TOOLS {
            for schema in [(tool.arguments)(), (tool.result)()] {
                let text = Value::Object(schema.clone()).to_string();
                for word in [
                    "$ref",
                    "$defs",
                    "anyOf",
                    "oneOf",
                    "allOf",
                    "\"null\"",
                    "\"format\"",
                ] {
                    assert!(!text.contains(word), "{}: {word} in {text}", tool.name);
                }
                assert_eq!(schema["type"], "object", "{}", tool.name);
            }
        }
    }
}
