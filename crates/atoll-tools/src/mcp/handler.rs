//! What an MCP client is answered.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData,
    Implementation, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, MetaObject,
    PaginatedRequestParams, ProgressNotificationParam, ReadResourceRequestParams,
    ReadResourceResponse, Resource, ServerCapabilities, ServerConfig, Tool as McpTool,
    ToolAnnotations,
};
use rmcp::service::{RequestContext, RoleServer};
use serde_json::{Map, Value, json};

use super::resources;
use crate::definition::{Answer, Call, Effect, Failure, Tool, World};
use crate::desk::Desk;
use crate::error::{ErrorCode, ToolError};
use crate::{ALIASES, TOOLS};

/// How often a client is told how far a call is, if it wants to know.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Where programs find code, cause and remediation of an error.
const META_ERROR: &str = "atoll/error";
/// And the structured result as far as there was one.
const META_PARTIAL: &str = "atoll/partial";

const INSTRUCTIONS: &str = "\
Tools for running code and commands in isolated Linux sandboxes. A sandbox is made when the first tool \
needs it, is shared by all calls without `sandbox_id`, and is destroyed at the end of the session: copy \
out what must stay with `read_file`. Nothing of the user's machine is visible inside. Long output is cut \
in the middle and saved in the sandbox; the result says where. Errors have a code and say what to do.";

/// Which tools are listed. All can be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Listing {
    /// The tools.
    #[default]
    Tools,
    /// And their aliases.
    WithAliases,
}

/// Whose session a request belongs to.
#[derive(Clone)]
pub(super) enum Desks {
    /// There is one.
    One(Arc<Desk>),
    /// It came with the request.
    InRequest,
}

/// Answers MCP clients. Knows no transport.
#[derive(Clone)]
pub(super) struct Handler {
    pub(super) desks: Desks,
    pub(super) listing: Listing,
}

impl Handler {
    fn desk(&self, context: &RequestContext<RoleServer>) -> Result<Arc<Desk>, ErrorData> {
        let found = match &self.desks {
            Desks::One(desk) => Some(Arc::clone(desk)),
            Desks::InRequest => context
                .extensions
                .get::<http::request::Parts>()
                .and_then(|parts| parts.extensions.get::<Arc<Desk>>())
                .cloned(),
        };
        found.ok_or_else(|| ErrorData::invalid_request("the request belongs to no session", None))
    }
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_resources()
            .build();
        let implementation =
            Implementation::new("atoll", env!("CARGO_PKG_VERSION")).with_title("Atoll sandboxes");
        ServerConfig::new(capabilities)
            .with_server_info(implementation)
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let aliases = match self.listing {
            Listing::Tools => &[][..],
            Listing::WithAliases => ALIASES,
        };
        let tools = TOOLS.iter().chain(aliases).map(described).collect();
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let desk = self.desk(&context)?;
        let _in_use = match desk.use_it() {
            Ok(in_use) => in_use,
            Err(error) => return Ok(told(Err(error.into())).into()),
        };
        let Some(tool) = crate::find(&request.name) else {
            let name: String = request.name.chars().take(64).collect();
            return Err(ErrorData::invalid_params(
                format!("there is no tool `{name}`"),
                Some(json!({"code": ErrorCode::UnknownTool.as_str()})),
            ));
        };
        let call = Call::new(desk);
        let arguments = request.arguments.unwrap_or_default();
        let answer = watched(tool, &call, arguments, &context).await;
        Ok(told(answer).into())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let desk = self.desk(&context)?;
        let listed = resources::list(&desk);
        Ok(ListResourcesResult::with_all_items(listed))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(
            resources::templates(),
        ))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let desk = self.desk(&context)?;
        let _in_use = desk.use_it().map_err(|error| {
            ErrorData::invalid_request(error.cause.clone(), serde_json::to_value(&error).ok())
        })?;
        let call = Call::new(desk);
        match resources::read(&call, &request.uri).await {
            Ok(read) => Ok(read.into()),
            Err(error) => Err(ErrorData::resource_not_found(
                error.cause.clone(),
                serde_json::to_value(&error).ok(),
            )),
        }
    }
}

/// Calls a tool, tells the client how far it is, and drops it when nobody
/// waits for it any more.
async fn watched(
    tool: &Tool,
    call: &Call,
    arguments: Map<String, Value>,
    context: &RequestContext<RoleServer>,
) -> Answer {
    let started = tokio::time::Instant::now();
    let token = context.meta.get_progress_token();
    let mut running = std::pin::pin!(tool.call(call, arguments));
    let mut ticks = tokio::time::interval_at(started + PROGRESS_EVERY, PROGRESS_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            answer = &mut running => return answer,
            () = context.ct.cancelled() => {
                return Err(ToolError::new(
                    ErrorCode::Cancelled,
                    "the call was cancelled, and what it ran was ended",
                    "call again if that was not wanted",
                ).into());
            }
            _ = ticks.tick(), if token.is_some() => {
                if let Some(token) = token.clone() {
                    let seconds = started.elapsed().as_secs_f64();
                    let news = call.news();
                    let news = if news.is_empty() { format!("{} runs", tool.name) } else { news };
                    let progress = ProgressNotificationParam::new(token, seconds).with_message(news);
                    if context.peer.notify_progress(progress).await.is_err() {
                        // Whoever does not listen is told at the end, if at all.
                        tracing::debug!("progress of {} could not be told", tool.name);
                    }
                }
            }
        }
    }
}

fn described(tool: &Tool) -> McpTool {
    let annotations = ToolAnnotations::with_title(tool.title)
        .read_only(tool.effect == Effect::Reads)
        .destructive(tool.effect == Effect::Destroys)
        .idempotent(tool.effect == Effect::Reads)
        .open_world(tool.world == World::Open);
    McpTool::new(
        tool.name,
        Cow::Borrowed(tool.description),
        Arc::new((tool.arguments)()),
    )
    .with_title(tool.title)
    .with_raw_output_schema(Arc::new((tool.result)()))
    .with_annotations(annotations)
}

fn told(answer: Answer) -> CallToolResult {
    match answer {
        Ok(outcome) => {
            let mut content = vec![ContentBlock::text(outcome.text)];
            for image in outcome.images {
                content.push(ContentBlock::image(image.data, image.mime_type));
                if let Some(uri) = image.uri {
                    let name = uri.rsplit('/').next().unwrap_or_default().to_owned();
                    let link = Resource::new(uri, name).with_mime_type(image.mime_type);
                    content.push(ContentBlock::resource_link(link));
                }
            }
            let mut result = CallToolResult::success(content);
            result.structured_content = Some(outcome.structured);
            result
        }
        Err(Failure { error, partial }) => {
            let mut content = vec![ContentBlock::text(error.to_string())];
            // Structured content is promised to fit the tool's schema, and some
            // clients hold errors to that as well.
            let mut meta = MetaObject::default();
            meta.insert(META_ERROR.to_owned(), json!(error));
            if let Some(partial) = partial {
                content.push(ContentBlock::text(partial.text));
                meta.insert(META_PARTIAL.to_owned(), partial.structured);
            }
            let mut result = CallToolResult::error(content);
            result.meta = Some(meta);
            result
        }
    }
}
