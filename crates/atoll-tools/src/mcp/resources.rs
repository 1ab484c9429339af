//! Files and plots as resources.
//!
//! `atoll://sandbox/{id}/files/{path}` is a file of a sandbox that the session
//! may use, `atoll://sandbox/{id}/plots/{number}.{png|jpeg}` a picture that code
//! drew in this session.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;
use rmcp::model::{ReadResourceResult, Resource, ResourceContents, ResourceTemplate};

use crate::definition::Call;
use crate::desk::Desk;
use crate::error::{ErrorCode, ToolError};
use crate::tools::files;

/// Largest file that is read as a resource.
const FILE_BYTES_MAX: u64 = 2 * 1024 * 1024;

pub(super) fn list(desk: &Desk) -> Vec<Resource> {
    let plots = desk.plots().into_iter().map(|plot| {
        Resource::new(plot.uri(), format!("plot {}", plot.number))
            .with_description(format!(
                "A picture that code drew in sandbox {}",
                plot.sandbox
            ))
            .with_mime_type(plot.mime_type)
    });
    plots.collect()
}

pub(super) fn templates() -> Vec<ResourceTemplate> {
    vec![
        ResourceTemplate::new("atoll://sandbox/{sandbox_id}/files/{+path}", "file")
            .with_title("File of a sandbox")
            .with_description("A file by its path, without the first slash; at most 2 MiB"),
        ResourceTemplate::new("atoll://sandbox/{sandbox_id}/plots/{plot}", "plot")
            .with_title("Plot")
            .with_description("A picture that code drew in this session"),
    ]
}

fn missing(uri: &str) -> ToolError {
    let shown: String = uri.chars().take(200).collect();
    ToolError::new(
        ErrorCode::ResourceNotFound,
        format!("there is no `{shown}`"),
        "list resources and their templates",
    )
}

pub(super) async fn read(call: &Call, uri: &str) -> Result<ReadResourceResult, ToolError> {
    let rest = uri
        .strip_prefix("atoll://sandbox/")
        .ok_or_else(|| missing(uri))?;
    let (id, rest) = rest.split_once('/').ok_or_else(|| missing(uri))?;
    if rest.starts_with("plots/") {
        let plots = call.desk.plots();
        let plot = plots.iter().find(|plot| plot.uri() == uri);
        let plot = plot.ok_or_else(|| missing(uri))?;
        let contents = ResourceContents::blob(plot.data.as_ref(), uri);
        return Ok(ReadResourceResult::new(vec![
            contents.with_mime_type(plot.mime_type),
        ]));
    }
    let path = rest.strip_prefix("files/").ok_or_else(|| missing(uri))?;
    let path = percent_decode_str(path).decode_utf8();
    let path = format!(
        "/{}",
        path.map_err(|_| missing(uri))?.trim_start_matches('/')
    );
    let place = call.desk.place(Some(id)).await?;
    let entry = files::file(call, &place, &path).await?;
    if entry.size > FILE_BYTES_MAX {
        return Err(ToolError::arguments(
            format!(
                "`{path}` has {} bytes; a resource has at most {FILE_BYTES_MAX}",
                entry.size
            ),
            "read it in parts with the tool `read_file`",
        ));
    }
    let bytes = files::part(call, &place, &path, 0, entry.size).await?;
    let contents = match String::from_utf8(bytes) {
        Ok(text) => ResourceContents::text(text, uri).with_mime_type("text/plain"),
        Err(error) => {
            let mime_type = files::picture(&path).unwrap_or("application/octet-stream");
            ResourceContents::blob(STANDARD.encode(error.as_bytes()), uri).with_mime_type(mime_type)
        }
    };
    Ok(ReadResourceResult::new(vec![contents]))
}
