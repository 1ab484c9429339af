//! `/files`: whole files in and out, streamed, in the name of a user.
//!
//! | module | owns |
//! |---|---|
//! | `query` | what a URL says, decoded once for its check and its use |
//! | `download` | `GET` |
//! | `encoding` | gzip, in both directions |
//! | `range`, `conditions` | parts of a file, and whether it changed |
//! | `disposition` | file names in headers, in both directions |
//! | `upload`, `parts` | `POST`: one file, or several in a form |
//! | `read`, `write` | a file on its way out, and a body on its way in: a thread each |
//! | `compose` | `POST /files/compose` |
//! | `lane` | large files past HTTP, for the host only |
//! | `open` | regular files, and nothing else, opened and made |
//! | `drain` | what a refused client still sends |
//! | `error` | what can go wrong |

mod compose;
mod conditions;
mod disposition;
mod download;
mod drain;
mod encoding;
mod error;
mod lane;
mod open;
mod parts;
mod query;
mod range;
mod read;
mod upload;
mod write;

use axum::http::HeaderMap;
use serde::Serialize;

pub(crate) use compose::compose;
pub(crate) use download::download;
pub(crate) use drain::{drain, refuse};
pub(crate) use error::FileError;
#[cfg(feature = "fuzzing")]
pub(crate) use parts::read_form;
pub(crate) use query::FileQuery;
pub(crate) use upload::upload;

use crate::access::{Admission, basic_user};
use crate::metadata::Metadata;
use crate::rights::act_as;
use crate::settings::Settings;
use crate::users::User;

/// Bytes that are gathered before they are passed on, and that tell a small
/// file from a large one.
const GATHERED_BYTES: usize = 64 * 1024;

/// One written file, as clients expect it: no further keys.
#[derive(Debug, Serialize)]
struct Written {
    name: String,
    path: String,
    r#type: &'static str,
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    metadata: Metadata,
}

impl Written {
    fn new(path: String, metadata: Metadata) -> Self {
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        Self {
            name,
            path,
            r#type: "file",
            metadata,
        }
    }
}

/// The user of a request: the one it names, the one it authorizes, or the
/// default one. Who holds a signed URL must not choose another user than it
/// names, so its headers do not count.
fn request_user(
    settings: &Settings,
    named: Option<&str>,
    headers: &HeaderMap,
    admission: Admission,
) -> Result<User, FileError> {
    let named = named
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .or_else(|| match admission {
            Admission::Token => basic_user(headers),
            Admission::Signature => None,
        });
    Ok(settings.user(named.as_deref())?)
}

/// Works on `path` in the name of `user`.
async fn as_user<T: Send + 'static>(
    user: &User,
    path: &str,
    work: impl FnOnce() -> Result<T, FileError> + Send + 'static,
) -> Result<T, FileError> {
    act_as(user, move || Ok(work()))
        .await
        .map_err(|source| FileError::thread(path, source))?
}
