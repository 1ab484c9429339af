//! Doors for the fuzzer (`cargo xtask fuzz`) into parsers that are private
//! otherwise. Not part of the guest that ships.

use axum::http::HeaderValue;
use bytes::Bytes;

use crate::users::Users;

/// A user that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Login name.
    pub name: String,
    /// Primary group.
    pub gid: u32,
    /// All groups.
    pub groups: Vec<u32>,
    /// Home directory.
    pub home: String,
}

/// The path that a client means, or nothing when it means none.
#[must_use]
pub fn path(path: &str, home: &str, workdir: Option<&str>) -> Option<String> {
    crate::paths::resolve(path, home, workdir).ok()
}

/// The user of that name, according to the two databases.
#[must_use]
pub fn user(passwd: &str, group: &str, name: &str) -> Option<User> {
    let user = Users::from_text(passwd, group).find(name).ok()?;
    Some(User {
        name: user.name,
        gid: user.gid,
        groups: user.groups,
        home: user.home,
    })
}

/// Names and contents of files.
pub type Files = Vec<(Option<String>, Vec<u8>)>;

/// The files in a form that arrives in pieces of `size` bytes.
///
/// # Errors
/// What a client would be told.
pub fn form(content_type: &[u8], body: &[u8], size: usize) -> Result<Files, String> {
    let content_type = HeaderValue::from_bytes(content_type).map_err(|error| error.to_string())?;
    let pieces: Vec<_> = body
        .chunks(size)
        .map(|piece| Ok(Bytes::copy_from_slice(piece)))
        .collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .map_err(|error| error.to_string())?;
    let body = Box::pin(futures_util::stream::iter(pieces));
    runtime
        .block_on(crate::files::read_form(content_type, body))
        .map_err(|error| error.to_string())
}
