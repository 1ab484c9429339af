//! `atoll tools`: the schemas of the tools, as function-calling APIs take them.

use std::io::Write as _;
use std::process::ExitCode;

use atoll_tools::{ALIASES, Format, TOOLS, Tool, document};

use crate::arguments::{ToolsArguments, ToolsFormat};

pub(crate) fn tools(arguments: &ToolsArguments) -> anyhow::Result<ExitCode> {
    let aliases = if arguments.aliases { ALIASES } else { &[] };
    let tools: Vec<&Tool> = TOOLS.iter().chain(aliases).collect();
    let mut out = std::io::stdout().lock();
    let format = match arguments.format {
        Some(ToolsFormat::Openai) => Format::OpenAi,
        Some(ToolsFormat::Anthropic) => Format::Anthropic,
        Some(ToolsFormat::Mcp) => Format::Mcp,
        Some(ToolsFormat::Generic) => Format::Generic,
        None if arguments.json => Format::Generic,
        None => {
            for tool in tools {
                let (first, _) = tool
                    .description
                    .split_once(". ")
                    .unwrap_or((tool.description, ""));
                writeln!(out, "{:<18}{}", tool.name, first.trim_end_matches('.'))?;
            }
            return Ok(ExitCode::SUCCESS);
        }
    };
    let document = document(format, tools);
    if arguments.json {
        writeln!(out, "{document}")?;
    } else {
        writeln!(out, "{document:#}")?;
    }
    Ok(ExitCode::SUCCESS)
}
