//! `$ATOLL_HOME/endpoint.json`: where the server of a home is, for clients on
//! the same host that were told nothing else. It is there and locked while a
//! server runs: what a killed one left is not locked, and means nothing.
//!
//! The key in it belongs to whoever can read the home, who could make one
//! anyway; it is an admin's, made once and kept in `local_key`.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use atoll_control::identity::{AuthenticationError, DEFAULT_TENANT, Keys, Role};
use serde::Serialize;

const FILE: &str = "endpoint.json";
const KEY_FILE: &str = "local_key";
/// What the key is called among the others.
const KEY_NAME: &str = "local";

/// Where a server is, and a key that it takes, as `atoll_client` reads it.
#[derive(Debug, Serialize)]
pub(crate) struct Endpoint {
    /// `http://…`, without a slash at its end.
    pub(crate) url: String,
    /// Key of the default tenant.
    pub(crate) api_key: String,
    /// The server's process.
    pub(crate) pid: u32,
}

/// An endpoint that is written down, until dropped.
pub(crate) struct Published {
    path: PathBuf,
    /// Locked: that is how readers know that the server still runs.
    _file: File,
}

impl Endpoint {
    /// Writes it down in the home at `home`.
    pub(crate) fn publish(&self, home: &Path) -> io::Result<Published> {
        let path = home.join(FILE);
        let text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        let file = write_privately(&path, &text, Locking::Exclusive)?;
        Ok(Published { path, _file: file })
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path); // without its lock it means nothing
    }
}

/// The key of local clients, made if there is none or it opens nothing any more.
pub(crate) async fn local_key(home: &Path, keys: &Keys) -> anyhow::Result<String> {
    let path = home.join(KEY_FILE);
    if let Ok(key) = fs::read_to_string(&path) {
        match keys.authenticate(&key).await {
            Ok(caller) if caller.role == Role::Admin => return Ok(key),
            // Of before there were roles.
            Ok(_) => {}
            Err(AuthenticationError::Refused(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let issued = keys
        .create_for(KEY_NAME, DEFAULT_TENANT, Role::Admin, None)
        .await?;
    let key = issued.key.reveal().to_owned();
    write_privately(&path, &key, Locking::None)?;
    Ok(key)
}

/// Whether a file that is written is locked before anybody can see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Locking {
    None,
    Exclusive,
}

/// Puts `text` in place of the file at `path`, which only its owner reads.
fn write_privately(path: &Path, text: &str, locking: Locking) -> io::Result<File> {
    let fresh = path.with_extension(format!("new-{}", std::process::id()));
    let _ = fs::remove_file(&fresh); // of a process that had this number and was killed
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&fresh)?;
    if locking == Locking::Exclusive {
        file.lock()?;
    }
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&fresh, path))
        .inspect_err(|_| {
            let _ = fs::remove_file(&fresh);
        })?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use atoll_client::EndpointError;

    use super::*;

    #[test]
    fn it_is_there_while_it_is_held_and_for_its_owner_alone() {
        let home = tempfile::tempdir().unwrap();
        let endpoint = Endpoint {
            url: "http://127.0.0.1:7300".to_owned(),
            api_key: "e2b_0".to_owned(),
            pid: 1,
        };
        let path = home.path().join(FILE);
        let read = || atoll_client::Endpoint::local(home.path());
        fs::write(&path, serde_json::to_string(&endpoint).unwrap()).unwrap();
        let left = read();
        assert!(
            matches!(left, Err(EndpointError::NotServed(_))),
            "of a server that was killed: {left:?}"
        );
        let published = endpoint.publish(home.path()).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let found = read().unwrap();
        assert_eq!(
            (found.url().as_str(), found.key()),
            ("http://127.0.0.1:7300", "e2b_0")
        );
        drop(published);
        assert!(matches!(read(), Err(EndpointError::NotServed(_))));
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
    }
}
