//! Tools under the names and with the arguments that CodeCrucible-style agents
//! know: `executeCode`, `terminal`, `fileOperations`. They work when called;
//! whoever lists tools sees them only when asked for.
//!
//! `sessionId` names a sandbox of the session that is made on first use;
//! timeouts are in milliseconds.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::definition::{Answer, Call, Effect, Tool, World, parse, schema};
use crate::error::ToolError;
use crate::tools::output::{follow, shell};
use crate::tools::sandboxes::processors;
use crate::tools::{TIMEOUT_MAX_SECONDS, execute_command, files, run_code};
use crate::workplace::{Place, WantedLimits};

/// Timeout of code and commands when none is given.
const TIMEOUT_MILLIS: u64 = 30_000;

/// What `executeCode` can run.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Language {
    Python,
    Javascript,
    Typescript,
    Bash,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ExecuteCode {
    /// The code.
    code: String,
    /// Its language.
    language: Language,
    /// A name: code with the same one shares variables and files. Default: the session's own sandbox.
    #[serde(default)]
    session_id: Option<String>,
    /// Milliseconds after which it is interrupted. Default 30000.
    #[serde(default)]
    timeout: Option<u64>,
    /// Limits of the sandbox, when it is made for this call.
    #[serde(default)]
    resource_limits: Option<ResourceLimits>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ResourceLimits {
    /// For example `512MB` or `1GB`.
    #[serde(default)]
    memory: Option<String>,
    /// Processors, for example `0.5`.
    #[serde(default)]
    cpu: Option<String>,
    /// For example `1GB`.
    #[serde(default)]
    disk_space: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Terminal {
    /// The command line.
    command: String,
    /// Directory to run it in.
    #[serde(default)]
    cwd: Option<String>,
    /// A name: commands with the same one share files. Default: the session's own sandbox.
    #[serde(default)]
    session_id: Option<String>,
    /// Milliseconds after which it is killed. Default 30000.
    #[serde(default)]
    timeout: Option<u64>,
}

/// What `fileOperations` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Operation {
    Upload,
    Download,
    List,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FileOperations {
    /// upload writes `content` to `path`, download returns what is there, list names what is in a directory.
    operation: Operation,
    /// Path in the sandbox.
    path: String,
    /// What to write.
    #[serde(default)]
    content: Option<String>,
    /// A name: operations with the same one share files. Default: the session's own sandbox.
    #[serde(default)]
    session_id: Option<String>,
}

/// A result of whichever tool is behind a name.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct Anything {
    /// The sandbox it happened in.
    sandbox_id: String,
}

fn result() -> Map<String, Value> {
    schema::<Anything>()
}

/// All aliases.
pub static ALIASES: &[Tool] = &[
    Tool {
        name: "executeCode",
        title: "Execute code",
        description: "Execute code safely in an isolated sandbox. Variables and files stay for the next call \
                      with the same sessionId.",
        effect: Effect::Destroys,
        world: World::Open,
        arguments: schema::<ExecuteCode>,
        result: schema::<run_code::Ran>,
        example: || json!({"code": "print(1 + 1)", "language": "python", "timeout": 30000}),
        run: |call, arguments| Box::pin(async move { execute_code(call, parse(arguments)?).await }),
    },
    Tool {
        name: "terminal",
        title: "Terminal",
        description: "Run a shell command in an isolated sandbox.",
        effect: Effect::Destroys,
        world: World::Open,
        arguments: schema::<Terminal>,
        result: schema::<execute_command::Ran>,
        example: || json!({"command": "ls -la", "timeout": 30000}),
        run: |call, arguments| Box::pin(async move { terminal(call, parse(arguments)?).await }),
    },
    Tool {
        name: "fileOperations",
        title: "File operations",
        description: "Upload, download or list files of an isolated sandbox.",
        effect: Effect::Destroys,
        world: World::Closed,
        arguments: schema::<FileOperations>,
        result,
        example: || json!({"operation": "upload", "path": "/home/user/a.txt", "content": "hello"}),
        run: |call, arguments| {
            Box::pin(async move { file_operations(call, parse(arguments)?).await })
        },
    },
];

/// The alias of that name.
#[must_use]
pub(crate) fn find(name: &str) -> Option<&'static Tool> {
    ALIASES.iter().find(|tool| tool.name == name)
}

async fn place(
    call: &Call,
    session: Option<&str>,
    limits: Option<&ResourceLimits>,
) -> Result<Place, ToolError> {
    let none = ResourceLimits::default();
    let limits = limits.unwrap_or(&none);
    let mib = |what, text: &Option<String>| {
        let text = text.as_deref();
        text.map(|text| mebibytes(what, text)).transpose()
    };
    let limits = WantedLimits {
        memory_mib: mib("memory", &limits.memory)?,
        cpu_millis: limits.cpu.as_deref().map(cpu_millis).transpose()?,
        disk_mib: mib("diskSpace", &limits.disk_space)?,
    };
    call.desk.limited_place(session, limits).await
}

async fn execute_code(call: &Call, arguments: ExecuteCode) -> Answer {
    let limit = timeout(arguments.timeout)?;
    let limits = arguments.resource_limits.as_ref();
    let place = place(call, arguments.session_id.as_deref(), limits).await?;
    let language = match arguments.language {
        Language::Python => run_code::Language::Python,
        Language::Javascript => run_code::Language::Javascript,
        Language::Typescript => run_code::Language::Typescript,
        Language::Bash => run_code::Language::Bash,
    };
    run_code::in_place(call, &place, language, arguments.code, limit).await
}

async fn terminal(call: &Call, arguments: Terminal) -> Answer {
    let limit = timeout(arguments.timeout)?;
    let place = place(call, arguments.session_id.as_deref(), None).await?;
    let command = atoll_guest_client::Command {
        cwd: arguments.cwd,
        ..shell(&arguments.command)
    };
    let followed = follow(call, &place, command, limit).await?;
    execute_command::told(call, &place, followed, limit).await
}

async fn file_operations(call: &Call, arguments: FileOperations) -> Answer {
    let place = place(call, arguments.session_id.as_deref(), None).await?;
    let (path, sandbox_id) = (arguments.path, Some(place.id));
    match (arguments.operation, arguments.content) {
        (Operation::Upload, Some(content)) => {
            let write = files::Write {
                path,
                content,
                encoding: None,
                sandbox_id,
            };
            files::write(call, write).await
        }
        (Operation::Upload, None) => {
            let cause = "upload needs `content`";
            Err(ToolError::arguments(cause, "say what to write").into())
        }
        (Operation::Download, _) => {
            let read = files::Read {
                path,
                offset: None,
                length: Some(files::LENGTH_MAX),
                sandbox_id,
            };
            files::read(call, read).await
        }
        (Operation::List, _) => {
            let list = files::List {
                path: Some(path),
                depth: None,
                sandbox_id,
            };
            files::list(call, list).await
        }
    }
}

fn timeout(millis: Option<u64>) -> Result<Duration, ToolError> {
    let timeout = Duration::from_millis(millis.unwrap_or(TIMEOUT_MILLIS));
    if timeout.is_zero() || timeout.as_secs_f64() > TIMEOUT_MAX_SECONDS {
        return Err(ToolError::arguments(
            format!("`timeout` cannot be {} ms", timeout.as_millis()),
            format!("give 1 to {} ms", TIMEOUT_MAX_SECONDS * 1000.0),
        ));
    }
    Ok(timeout)
}

fn mebibytes(what: &str, text: &str) -> Result<u64, ToolError> {
    let upper = text.trim().to_ascii_uppercase();
    let units = [
        ("GIB", 1024),
        ("GB", 1024),
        ("G", 1024),
        ("MIB", 1),
        ("MB", 1),
        ("M", 1),
    ];
    let parsed = units.iter().find_map(|(unit, mib)| {
        let number: u64 = upper.strip_suffix(unit)?.trim().parse().ok()?;
        number.checked_mul(*mib)
    });
    parsed.filter(|mib| *mib > 0).ok_or_else(|| {
        ToolError::arguments(
            format!("`{what}` cannot be {text:?}"),
            "write for example `512MB` or `1GB`",
        )
    })
}

fn cpu_millis(text: &str) -> Result<u64, ToolError> {
    let cpus: f64 = text.trim().parse().unwrap_or(f64::NAN);
    processors(cpus).map_err(|_| {
        ToolError::arguments(
            format!("`cpu` cannot be {text:?}"),
            "write for example `0.5`",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_the_configuration_of_codecrucible_writes_them() {
        assert_eq!(mebibytes("memory", "512MB"), Ok(512));
        assert_eq!(mebibytes("memory", " 1 gb"), Ok(1024));
        assert_eq!(mebibytes("memory", "2GiB"), Ok(2048));
        for bad in ["", "512", "-1MB", "0MB", "much", "99999999999999999999GB"] {
            assert!(mebibytes("memory", bad).is_err(), "{bad}");
        }
        assert_eq!(cpu_millis("0.5"), Ok(500));
        assert_eq!(cpu_millis("2"), Ok(2000));
        for bad in ["", "-1", "0", "NaN", "inf", "1e9"] {
            assert!(cpu_millis(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn execute_code_has_the_arguments_that_agents_know() {
        let schema = schema::<ExecuteCode>();
        let names: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
        let expected = ["code", "language", "resourceLimits", "sessionId", "timeout"];
        assert_eq!(names, expected);
        assert_eq!(schema["required"], json!(["code", "language"]));
        let languages = json!(["python", "javascript", "typescript", "bash"]);
        assert_eq!(schema["properties"]["language"]["enum"], languages);
        for alias in ALIASES {
            let example = (alias.example)();
            let Value::Object(example) = example else {
                panic!()
            };
            match alias.name {
                "executeCode" => drop(parse::<ExecuteCode>(example).unwrap()),
                "terminal" => drop(parse::<Terminal>(example).unwrap()),
                "fileOperations" => drop(parse::<FileOperations>(example).unwrap()),
                other => panic!("{other}"),
            }
        }
    }
}
