//! `atoll mcp` and `atoll tools`: names, defaults, help and examples.

use clap::{Args, ValueEnum};

use super::SandboxArguments;

#[derive(Debug, Args)]
#[command(after_help = "\
Speaks MCP on standard input and output, needs no server, and ends with its client. A sandbox is
made when the first tool needs it; all sandboxes of a session are destroyed at its end. Without
--template it uses code-interpreter-v1-slim if that is built, else base.

Examples:
  claude mcp add atoll -- sudo atoll mcp
  sudo atoll mcp --net full --memory 2G
  sudo atoll mcp --template base --isolation gvisor")]
pub(crate) struct McpArguments {
    /// Also list the tools under the names that other agents know: executeCode, terminal, fileOperations.
    #[arg(long)]
    pub(crate) aliases: bool,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArguments,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  atoll tools
  atoll tools --format openai > tools.json
  atoll tools --format anthropic --aliases")]
pub(crate) struct ToolsArguments {
    /// Whose document [default: a list for people].
    #[arg(long, value_enum)]
    pub(crate) format: Option<ToolsFormat>,

    /// Also the names that other agents know: executeCode, terminal, fileOperations.
    #[arg(long)]
    pub(crate) aliases: bool,

    /// One line of JSON instead of an indented document.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ToolsFormat {
    /// `tools` of OpenAI's chat completions.
    Openai,
    /// `tools` of Anthropic's messages.
    Anthropic,
    /// JSON schemas of arguments and results, with an example each.
    Generic,
    /// What `tools/list` of MCP answers.
    Mcp,
}
