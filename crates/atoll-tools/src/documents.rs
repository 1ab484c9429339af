//! The schemas as the documents that function-calling APIs take.

use serde_json::{Map, Value, json};

use crate::definition::{Effect, Tool, World};

/// Whose document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `tools` of OpenAI's chat completions.
    OpenAi,
    /// `tools` of Anthropic's messages.
    Anthropic,
    /// Name, description, JSON schemas of arguments and result, an example.
    Generic,
    /// What `tools/list` of MCP returns.
    Mcp,
}

/// The document of these tools.
#[must_use]
pub fn document<'a>(format: Format, tools: impl IntoIterator<Item = &'a Tool>) -> Value {
    let tools = tools.into_iter();
    match format {
        Format::OpenAi => tools
            .map(|tool| {
                json!({"type": "function", "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": (tool.arguments)(),
                }})
            })
            .collect(),
        Format::Anthropic => tools
            .map(|tool| {
                json!({
                    "name": tool.name,
                    "description": tool.description,
                    "input_schema": (tool.arguments)(),
                })
            })
            .collect(),
        Format::Generic => tools
            .map(|tool| {
                json!({
                    "name": tool.name,
                    "title": tool.title,
                    "description": tool.description,
                    "parameters": (tool.arguments)(),
                    "returns": (tool.result)(),
                    "annotations": annotations(tool),
                    "example": (tool.example)(),
                })
            })
            .collect(),
        Format::Mcp => {
            let tools: Vec<Value> = tools.map(mcp).collect();
            json!({ "tools": tools })
        }
    }
}

fn mcp(tool: &Tool) -> Value {
    json!({
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        "inputSchema": (tool.arguments)(),
        "outputSchema": (tool.result)(),
        "annotations": annotations(tool),
    })
}

/// What a client may want to know before a call, as MCP spells it.
pub(crate) fn annotations(tool: &Tool) -> Map<String, Value> {
    let mut hints = Map::new();
    let mut set = |name: &str, value: bool| hints.insert(name.to_owned(), value.into());
    set("readOnlyHint", tool.effect == Effect::Reads);
    set("destructiveHint", tool.effect == Effect::Destroys);
    set("idempotentHint", tool.effect == Effect::Reads);
    set("openWorldHint", tool.world == World::Open);
    hints
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ALIASES, TOOLS};

    #[test]
    fn each_maker_gets_the_document_that_its_api_takes() {
        let tools = || TOOLS.iter().chain(ALIASES);
        let count = TOOLS.len() + ALIASES.len();
        let openai = document(Format::OpenAi, tools());
        let first = &openai[0];
        assert_eq!(first["type"], "function");
        assert_eq!(first["function"]["name"], "run_code");
        assert_eq!(first["function"]["parameters"]["required"], json!(["code"]));
        let anthropic = document(Format::Anthropic, tools());
        let keys: Vec<&String> = anthropic[0].as_object().unwrap().keys().collect();
        assert_eq!(keys, ["description", "input_schema", "name"]);
        let generic = document(Format::Generic, tools());
        assert_eq!(generic[0]["returns"]["type"], "object");
        let mcp = document(Format::Mcp, tools());
        assert_eq!(mcp["tools"].as_array().unwrap().len(), count);
        assert_eq!(mcp["tools"][6]["annotations"]["readOnlyHint"], true);
        for list in [&openai, &anthropic, &generic] {
            assert_eq!(list.as_array().unwrap().len(), count);
        }
    }
}
