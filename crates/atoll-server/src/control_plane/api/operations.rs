//! What each route of `/api/v1` takes and answers, for the document.

use http::Method;

use super::files::{FileBody, FileContent, FileList, NewDirectory, NewFile};
use super::openapi::{SchemaOf, schema};
use super::problem::ErrorCode::{
    self, Conflict, DiskFull, Forbidden, NotFound, PayloadTooLarge, QuotaExceeded, SandboxPaused,
    SandboxUnavailable, ServerUnavailable, SessionEnded,
};
use super::processes::{NewProcess, ProcessInputBody, ProcessList, ProcessOutput};
use super::usage::{SandboxUsage, Usage};
use super::wire::{
    CompletedTask, GrantList, NewGrant, NewSandbox, NewSessionBody, SandboxBody, SandboxList,
    SessionBody, SessionList,
};
use super::wire_execution::{Execute, ExecutionBody, ExecutionList, InstallPackages};

/// What a body holds.
#[derive(Clone, Copy)]
pub(super) enum Sent {
    Nothing,
    Json(SchemaOf),
    JsonOrEvents(SchemaOf),
    Events,
    Bytes,
    Text(&'static str),
    AnyJson,
}

/// Something in a query.
pub(super) struct Param {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    pub(super) what: &'static str,
}

/// One operation.
pub(super) struct Operation {
    pub(super) method: Method,
    pub(super) path: &'static str,
    pub(super) id: &'static str,
    pub(super) tag: &'static str,
    pub(super) summary: &'static str,
    pub(super) is_open: bool,
    pub(super) query: &'static [Param],
    pub(super) body: Option<Sent>,
    pub(super) answers: &'static [(u16, &'static str, Sent)],
    pub(super) errors: &'static [ErrorCode],
}

const fn param(name: &'static str, kind: &'static str, what: &'static str) -> Param {
    Param { name, kind, what }
}

const LIMIT: Param = param(
    "limit",
    "limit",
    "How many entries at most; 100 when absent",
);
const CURSOR: Param = param(
    "cursor",
    "text",
    "Where to go on: `next_cursor` of the page before",
);
const AGENT: Param = param("agent_id", "text", "Only those of this agent");
const TASK: Param = param("task_id", "text", "Only those of this task");
const PATH: Param = param(
    "path",
    "path",
    "Path inside the sandbox; a relative one starts at the user's home",
);
const USER: Param = param(
    "user",
    "text",
    "In whose name; the sandbox's user when absent",
);
const FROM: Param = param("from", "date-time", "Only what was asked for then or later");
const TO: Param = param("to", "date-time", "Only what was asked for before then");

/// Errors of everything that is done in a sandbox.
const IN_SANDBOX: &[ErrorCode] = &[Forbidden, NotFound, SandboxPaused, SandboxUnavailable];
const RUNS: &[ErrorCode] = &[
    Forbidden,
    NotFound,
    SandboxPaused,
    QuotaExceeded,
    SandboxUnavailable,
];
const FILES: &[ErrorCode] = &[
    Forbidden,
    NotFound,
    SandboxPaused,
    PayloadTooLarge,
    SandboxUnavailable,
    DiskFull,
];

macro_rules! operations {
    ($($method:ident $path:literal $id:literal $tag:literal $summary:literal
        { $($field:ident: $value:expr),* $(,)? })*) => {
        /// Every operation of `/api/v1`.
        pub(super) static OPERATIONS: &[Operation] = &[$(Operation {
            $($field: $value,)*
            ..Operation {
                method: Method::$method,
                path: $path,
                id: $id,
                tag: $tag,
                summary: $summary,
                is_open: false,
                query: &[],
                body: None,
                answers: &[],
                errors: &[],
            }
        },)*];
    };
}

operations! {
    GET "/api/v1/openapi.json" "getDocument" "about" "This document" {
        is_open: true, answers: &[(200, "The document", Sent::AnyJson)],
    }
    GET "/api/v1/docs" "getPage" "about" "A page to try it" {
        is_open: true, answers: &[(200, "The page", Sent::Text("text/html"))],
    }
    GET "/api/v1/docs/page.js" "getScript" "about" "Its script" {
        is_open: true, answers: &[(200, "The script", Sent::Text("text/javascript"))],
    }
    GET "/api/v1/docs/page.css" "getStyle" "about" "Its style" {
        is_open: true, answers: &[(200, "The style", Sent::Text("text/css"))],
    }
    POST "/api/v1/sandboxes" "createSandbox" "sandboxes" "Make a sandbox" {
        body: Some(Sent::Json(schema::<NewSandbox>)),
        answers: &[(201, "It takes commands", Sent::Json(schema::<SandboxBody>))],
        errors: &[Forbidden, NotFound, Conflict, QuotaExceeded, ServerUnavailable],
    }
    GET "/api/v1/sandboxes" "listSandboxes" "sandboxes" "List sandboxes" {
        query: &[AGENT, TASK, param("status", "text", "`running`, `paused`, `stopped` or `error`; those that are there when absent"), LIMIT, CURSOR],
        answers: &[(200, "A page", Sent::Json(schema::<SandboxList>))],
        errors: &[Forbidden],
    }
    GET "/api/v1/sandboxes/{sandbox}" "getSandbox" "sandboxes" "Look at a sandbox, also at one that ended" {
        answers: &[(200, "The sandbox", Sent::Json(schema::<SandboxBody>))],
        errors: &[Forbidden, NotFound],
    }
    DELETE "/api/v1/sandboxes/{sandbox}" "deleteSandbox" "sandboxes" "End a sandbox" {
        answers: &[(204, "Nothing is left of it", Sent::Nothing)],
        errors: &[Forbidden, NotFound, ServerUnavailable],
    }
    POST "/api/v1/sandboxes/{sandbox}/execute" "executeInSandbox" "executions" "Run code or a command" {
        body: Some(Sent::Json(schema::<Execute>)),
        answers: &[
            (200, "It ended (`sync`), or its events (`stream`)", Sent::JsonOrEvents(schema::<ExecutionBody>)),
            (202, "It runs (`async`)", Sent::Json(schema::<ExecutionBody>)),
        ],
        errors: RUNS,
    }
    POST "/api/v1/sandboxes/{sandbox}/packages" "installPackages" "executions" "Install packages" {
        body: Some(Sent::Json(schema::<InstallPackages>)),
        answers: &[
            (200, "It ended (`sync`), or its events (`stream`)", Sent::JsonOrEvents(schema::<ExecutionBody>)),
            (202, "It runs (`async`)", Sent::Json(schema::<ExecutionBody>)),
        ],
        errors: RUNS,
    }
    POST "/api/v1/sandboxes/{sandbox}/upload" "upload" "files" "Write a file of any size" {
        query: &[PATH, USER], body: Some(Sent::Bytes),
        answers: &[(201, "It is written", Sent::Json(schema::<FileBody>))],
        errors: FILES,
    }
    GET "/api/v1/sandboxes/{sandbox}/download" "download" "files" "Read a file of any size" {
        query: &[PATH, USER],
        answers: &[(200, "Its bytes", Sent::Bytes)],
        errors: FILES,
    }
    GET "/api/v1/sandboxes/{sandbox}/files" "listFiles" "files" "List a directory" {
        query: &[PATH, USER, param("depth", "integer", "Levels; 1 when absent")],
        answers: &[(200, "What is in it", Sent::Json(schema::<FileList>))],
        errors: FILES,
    }
    DELETE "/api/v1/sandboxes/{sandbox}/files" "removeFile" "files" "Remove a file, or a directory with all that is in it" {
        query: &[PATH, USER],
        answers: &[(204, "It is gone", Sent::Nothing)],
        errors: FILES,
    }
    GET "/api/v1/sandboxes/{sandbox}/files/stat" "statFile" "files" "Look at a file" {
        query: &[PATH, USER],
        answers: &[(200, "What it is", Sent::Json(schema::<FileBody>))],
        errors: FILES,
    }
    GET "/api/v1/sandboxes/{sandbox}/files/content" "readFile" "files" "Read a short file" {
        query: &[PATH, USER],
        answers: &[(200, "Its content", Sent::Json(schema::<FileContent>))],
        errors: FILES,
    }
    PUT "/api/v1/sandboxes/{sandbox}/files/content" "writeFile" "files" "Write a short file" {
        body: Some(Sent::Json(schema::<NewFile>)),
        answers: &[(200, "It is written", Sent::Json(schema::<FileBody>))],
        errors: FILES,
    }
    POST "/api/v1/sandboxes/{sandbox}/files/directories" "makeDirectory" "files" "Make a directory" {
        body: Some(Sent::Json(schema::<NewDirectory>)),
        answers: &[
            (200, "It was there", Sent::Json(schema::<FileBody>)),
            (201, "It is made", Sent::Json(schema::<FileBody>)),
        ],
        errors: FILES,
    }
    POST "/api/v1/sandboxes/{sandbox}/processes" "startProcess" "processes" "Start a process in the background" {
        body: Some(Sent::Json(schema::<NewProcess>)),
        answers: &[(201, "It runs", Sent::Json(schema::<ExecutionBody>))],
        errors: RUNS,
    }
    GET "/api/v1/sandboxes/{sandbox}/processes" "listProcesses" "processes" "List processes" {
        answers: &[(200, "Those that run, or ended a moment ago", Sent::Json(schema::<ProcessList>))],
        errors: &[Forbidden, NotFound],
    }
    GET "/api/v1/sandboxes/{sandbox}/processes/{process}" "getProcess" "processes" "Look at a process" {
        answers: &[(200, "The process", Sent::Json(schema::<ExecutionBody>))],
        errors: &[Forbidden, NotFound],
    }
    DELETE "/api/v1/sandboxes/{sandbox}/processes/{process}" "stopProcess" "processes" "End a process with everything it started" {
        answers: &[(204, "It ended", Sent::Nothing)],
        errors: &[Forbidden, NotFound, SandboxUnavailable],
    }
    GET "/api/v1/sandboxes/{sandbox}/processes/{process}/output" "readProcess" "processes" "Read what a process said" {
        query: &[param("after", "integer", "`next` of the answer before")],
        answers: &[(200, "Its output", Sent::Json(schema::<ProcessOutput>))],
        errors: &[Forbidden, NotFound],
    }
    POST "/api/v1/sandboxes/{sandbox}/processes/{process}/input" "writeToProcess" "processes" "Write to a process" {
        body: Some(Sent::Json(schema::<ProcessInputBody>)),
        answers: &[(204, "It took it", Sent::Nothing)],
        errors: &[Forbidden, NotFound, Conflict, SandboxUnavailable],
    }
    GET "/api/v1/sandboxes/{sandbox}/usage" "getSandboxUsage" "usage" "What a sandbox uses" {
        answers: &[(200, "As the host counts it", Sent::Json(schema::<SandboxUsage>))],
        errors: IN_SANDBOX,
    }
    POST "/api/v1/sandboxes/{sandbox}/grants" "grantSandbox" "grants" "Let another agent use a sandbox" {
        body: Some(Sent::Json(schema::<NewGrant>)),
        answers: &[(204, "It may", Sent::Nothing)],
        errors: &[Forbidden, NotFound, QuotaExceeded],
    }
    DELETE "/api/v1/sandboxes/{sandbox}/grants/{agent}" "revokeSandbox" "grants" "Let it no more" {
        answers: &[(204, "It may not", Sent::Nothing)],
        errors: &[Forbidden, NotFound],
    }
    POST "/api/v1/sessions" "createSession" "sessions" "Make a session, or find the one of this agent and task" {
        body: Some(Sent::Json(schema::<NewSessionBody>)),
        answers: &[
            (200, "It was there", Sent::Json(schema::<SessionBody>)),
            (201, "It is new", Sent::Json(schema::<SessionBody>)),
        ],
        errors: &[Forbidden, NotFound, Conflict, QuotaExceeded, SandboxUnavailable, ServerUnavailable],
    }
    GET "/api/v1/sessions" "listSessions" "sessions" "List sessions" {
        query: &[AGENT, TASK, param("status", "text", "`active` or `ended`"), LIMIT, CURSOR],
        answers: &[(200, "A page", Sent::Json(schema::<SessionList>))],
        errors: &[Forbidden],
    }
    GET "/api/v1/sessions/{session}" "getSession" "sessions" "Look at a session" {
        answers: &[(200, "The session", Sent::Json(schema::<SessionBody>))],
        errors: &[Forbidden, NotFound],
    }
    DELETE "/api/v1/sessions/{session}" "deleteSession" "sessions" "End a session and its sandbox" {
        answers: &[(204, "Nothing is left of it", Sent::Nothing)],
        errors: &[Forbidden, NotFound, SessionEnded, ServerUnavailable],
    }
    POST "/api/v1/sessions/{session}/execute" "executeInSession" "executions" "Run code or a command in a session" {
        body: Some(Sent::Json(schema::<Execute>)),
        answers: &[
            (200, "It ended (`sync`), or its events (`stream`)", Sent::JsonOrEvents(schema::<ExecutionBody>)),
            (202, "It runs (`async`)", Sent::Json(schema::<ExecutionBody>)),
        ],
        errors: &[Forbidden, NotFound, SessionEnded, QuotaExceeded, SandboxUnavailable, ServerUnavailable],
    }
    GET "/api/v1/sessions/{session}/grants" "listSessionGrants" "grants" "Which other agents may use a session" {
        answers: &[(200, "Their names", Sent::Json(schema::<GrantList>))],
        errors: &[Forbidden, NotFound],
    }
    POST "/api/v1/sessions/{session}/grants" "grantSession" "grants" "Let another agent use a session" {
        body: Some(Sent::Json(schema::<NewGrant>)),
        answers: &[(204, "It may", Sent::Nothing)],
        errors: &[Forbidden, NotFound, QuotaExceeded],
    }
    DELETE "/api/v1/sessions/{session}/grants/{agent}" "revokeSession" "grants" "Let it no more" {
        answers: &[(204, "It may not", Sent::Nothing)],
        errors: &[Forbidden, NotFound],
    }
    POST "/api/v1/tasks/{task}/complete" "completeTask" "sessions" "End everything that belongs to a task" {
        answers: &[(200, "What ended", Sent::Json(schema::<CompletedTask>))],
        errors: &[ServerUnavailable],
    }
    GET "/api/v1/executions" "listExecutions" "executions" "The history of executions" {
        query: &[
            AGENT, TASK,
            param("session_id", "text", "Only those of this session"),
            param("sandbox_id", "text", "Only those in this sandbox"),
            param("status", "text", "`running`, `succeeded`, `failed`, `cancelled` or `interrupted`"),
            FROM, TO, LIMIT, CURSOR,
        ],
        answers: &[(200, "A page, the newest first", Sent::Json(schema::<ExecutionList>))],
        errors: &[Forbidden],
    }
    GET "/api/v1/executions/{execution}" "getExecution" "executions" "Look at an execution" {
        answers: &[(200, "The execution", Sent::Json(schema::<ExecutionBody>))],
        errors: &[Forbidden, NotFound],
    }
    GET "/api/v1/executions/{execution}/events" "followExecution" "executions" "Events of an execution, from the one after `Last-Event-ID` on" {
        query: &[param("last_event_id", "integer", "The same for who cannot send headers")],
        answers: &[(200, "`started`, `stdout`, `stderr`, `result`, `error`, `dropped`, `end`", Sent::Events)],
        errors: &[Forbidden, NotFound],
    }
    POST "/api/v1/executions/{execution}/cancel" "cancelExecution" "executions" "End an execution" {
        answers: &[(200, "It ended", Sent::Json(schema::<ExecutionBody>))],
        errors: &[Forbidden, NotFound, Conflict, SandboxUnavailable],
    }
    GET "/api/v1/usage" "getUsage" "usage" "What sandboxes used and executions took" {
        query: &[
            param("by", "text", "How `metered` is summed up: by `agent`, `task` or `sandbox`; `agent` when absent"),
            AGENT, TASK,
            param("sandbox_id", "text", "Only what this sandbox used"),
            FROM, TO, LIMIT, CURSOR,
        ],
        answers: &[(200, "The sums", Sent::Json(schema::<Usage>))],
        errors: &[Forbidden],
    }
    GET "/api/v1/admin/sandboxes" "listAllSandboxes" "admin" "Sandboxes of all tenants, for the operator" {
        query: &[LIMIT, CURSOR],
        answers: &[(200, "A page", Sent::Json(schema::<SandboxList>))],
        errors: &[Forbidden],
    }
}
