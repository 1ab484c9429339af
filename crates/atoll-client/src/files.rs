//! Files and directories in a sandbox. Paths are the sandbox's; relative ones
//! start at the user's home.

use std::fs::File;
use std::io::Cursor;

use atoll_guest_client::{
    Code, Entry, FileReader, GuestClient, GuestError, ReadOptions, SaveError, Watch, WatchOptions,
};
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Files of one sandbox.
#[derive(Debug, Clone, Copy)]
pub struct Files<'a> {
    guest: &'a GuestClient,
    user: Option<&'a str>,
}

impl<'a> Files<'a> {
    pub(crate) fn new(guest: &'a GuestClient) -> Self {
        Self { guest, user: None }
    }

    /// The same in the name of another user.
    #[must_use]
    pub fn as_user(self, user: &'a str) -> Self {
        Self {
            user: Some(user),
            ..self
        }
    }

    /// Writes a file with the directories above it.
    ///
    /// # Errors
    /// [`GuestError::Refused`] when that is refused.
    pub async fn write(&self, path: &str, content: impl Into<Bytes>) -> Result<(), GuestError> {
        self.write_from(path, Cursor::new(content.into())).await
    }

    /// Writes a file from a stream, piece by piece.
    ///
    /// # Errors
    /// As for [`Self::write`], and when the source fails; part of the file may be there then.
    pub async fn write_from(
        &self,
        path: &str,
        source: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<(), GuestError> {
        self.guest.write_file(path, self.user, source).await
    }

    /// Reads a file of at most `max_bytes`.
    ///
    /// # Errors
    /// [`GuestError::Refused`] when that is refused, [`GuestError::TooLarge`] beyond the limit.
    pub async fn read(&self, path: &str, max_bytes: u64) -> Result<Vec<u8>, GuestError> {
        let options = ReadOptions {
            max_bytes: Some(max_bytes),
        };
        let mut reader = self.guest.read_file_with(path, self.user, options).await?;
        let mut content = Vec::new();
        reader.read_to_end(&mut content).await.map_err(|error| {
            // A reader of files packs its own errors into those of streams.
            error
                .downcast::<GuestError>()
                .unwrap_or_else(|other| GuestError::Disconnected(other.to_string()))
        })?;
        Ok(content)
    }

    /// Reads a file piece by piece. Its end proves that it came whole.
    ///
    /// # Errors
    /// [`GuestError::Refused`] when that is refused.
    pub async fn open(&self, path: &str) -> Result<FileReader, GuestError> {
        self.guest.read_file(path, self.user).await
    }

    /// Writes a file into one of this machine, from where that is, and says
    /// how many bytes it has. The fastest way out, for callers whose thread may
    /// wait for a disk.
    ///
    /// # Errors
    /// As for [`Self::open`], and when the file does not come whole or cannot be
    /// written; part of it may be there then.
    pub async fn save(&self, path: &str, to: File) -> Result<u64, SaveError> {
        self.open(path).await?.save_to(to).await
    }

    /// What a path is.
    ///
    /// # Errors
    /// `Rpc { code: NotFound }` when there is nothing.
    pub async fn stat(&self, path: &str) -> Result<Entry, GuestError> {
        self.guest.stat(path, self.user).await
    }

    /// Whether there is something.
    ///
    /// # Errors
    /// When that cannot be found out.
    pub async fn exists(&self, path: &str) -> Result<bool, GuestError> {
        match self.stat(path).await {
            Ok(_) => Ok(true),
            Err(GuestError::Rpc {
                code: Code::NotFound,
                ..
            }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What is in a directory, and in those below it down to `depth`.
    ///
    /// # Errors
    /// `Rpc { code: NotFound }` when there is none.
    pub async fn list(&self, path: &str, depth: u32) -> Result<Vec<Entry>, GuestError> {
        self.guest.list_dir(path, depth, self.user).await
    }

    /// Makes a directory with those above it; `false` when it is there already.
    ///
    /// # Errors
    /// When something else is there.
    pub async fn make_dir(&self, path: &str) -> Result<bool, GuestError> {
        self.guest.make_dir(path, self.user).await
    }

    /// Gives something another name.
    ///
    /// # Errors
    /// `Rpc { code: NotFound }` when there is nothing.
    pub async fn rename(&self, from: &str, to: &str) -> Result<Entry, GuestError> {
        self.guest.rename(from, to, self.user).await
    }

    /// Removes something, with all that is below it.
    ///
    /// # Errors
    /// When that is refused.
    pub async fn remove(&self, path: &str) -> Result<(), GuestError> {
        self.guest.remove(path, self.user).await
    }

    /// Follows what happens in a directory until the answer is dropped.
    ///
    /// # Errors
    /// `Rpc { code: NotFound }` when there is none.
    pub async fn watch(&self, path: &str, options: WatchOptions) -> Result<Watch, GuestError> {
        self.guest.watch(path, options, self.user).await
    }
}
