//! What happens in a directory.

use atoll_protocol::envd::filesystem::{
    EventType, FilesystemEvent, WatchDirRequest, WatchDirResponse,
};
use atoll_protocol::envd::filesystem_oneof::WatchDirEvent;
use buffa::EnumValue;
use tokio::time::timeout;

use crate::answer::ANSWER_BOUND;
use crate::client::GuestClient;
use crate::entry::{Entry, GuestText};
use crate::error::GuestError;
use crate::messages::MessageStream;

/// How a directory is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WatchOptions {
    /// Whether everything below it counts too.
    pub recursive: bool,
    /// Whether events say what the path is now.
    pub include_entry: bool,
    /// Whether it may be on a network file system, where changes by other
    /// machines are not seen.
    pub allow_network_mounts: bool,
}

/// What happened to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WatchEventKind {
    /// It is new.
    Create,
    /// Its content changed.
    Write,
    /// It is gone.
    Remove,
    /// It has another name now.
    Rename,
    /// Its owner, mode or times changed.
    Chmod,
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchEvent {
    /// What.
    pub kind: WatchEventKind,
    /// To what: a path from the watched directory, in the guest's words.
    pub name: GuestText,
    /// What the path is now, when that was asked for and it still is.
    pub entry: Option<Entry>,
}

/// A directory that is watched until this is dropped.
#[derive(Debug)]
pub struct Watch {
    messages: MessageStream,
}

impl GuestClient {
    /// Watches a directory; returns when the watch is set.
    ///
    /// # Errors
    /// `Rpc { code: NotFound }` when there is nothing, `InvalidArgument` when
    /// it is no directory.
    pub async fn watch(
        &self,
        path: &str,
        options: WatchOptions,
        user: Option<&str>,
    ) -> Result<Watch, GuestError> {
        let WatchOptions {
            recursive,
            include_entry,
            allow_network_mounts,
        } = options;
        let message = WatchDirRequest {
            path: path.to_owned(),
            recursive,
            include_entry,
            allow_network_mounts,
            ..Default::default()
        };
        let method = "/filesystem.Filesystem/WatchDir";
        let answer = self.stream(method, &message, user, Vec::new()).await?;
        let mut messages = MessageStream::open(answer, self.silence(), None).await?;
        let first = timeout(ANSWER_BOUND, messages.next::<WatchDirResponse>())
            .await
            .map_err(|_| GuestError::Timeout {
                what: "start the watch",
                bound: ANSWER_BOUND,
            })??;
        match first.and_then(|message| message.event) {
            Some(WatchDirEvent::Start(_)) => Ok(Watch { messages }),
            Some(WatchDirEvent::Filesystem(_) | WatchDirEvent::Keepalive(_)) | None => {
                Err(messages.broken("the first message of a watch is not its start"))
            }
        }
    }
}

impl Watch {
    /// The next thing that happens; `None` when the guest ended the watch.
    /// Safe to cancel.
    ///
    /// # Errors
    /// When the guest misbehaves, is silent for too long or is gone. Nothing
    /// follows an error.
    pub async fn next(&mut self) -> Result<Option<WatchEvent>, GuestError> {
        loop {
            let Some(message) = self.messages.next::<WatchDirResponse>().await? else {
                return Ok(None);
            };
            match message.event {
                Some(WatchDirEvent::Filesystem(event)) => {
                    if let Some(event) = self.read(*event)? {
                        return Ok(Some(event));
                    }
                }
                Some(WatchDirEvent::Start(_)) => {
                    return Err(self.messages.broken("a watch started twice"));
                }
                // What this version does not know is none of its business.
                Some(WatchDirEvent::Keepalive(_)) | None => {}
            }
        }
    }

    /// Reads an event; `None` for a kind that this version does not know.
    fn read(&mut self, event: FilesystemEvent) -> Result<Option<WatchEvent>, GuestError> {
        let kind = match event.r#type {
            EnumValue::Known(EventType::EVENT_TYPE_CREATE) => WatchEventKind::Create,
            EnumValue::Known(EventType::EVENT_TYPE_WRITE) => WatchEventKind::Write,
            EnumValue::Known(EventType::EVENT_TYPE_REMOVE) => WatchEventKind::Remove,
            EnumValue::Known(EventType::EVENT_TYPE_RENAME) => WatchEventKind::Rename,
            EnumValue::Known(EventType::EVENT_TYPE_CHMOD) => WatchEventKind::Chmod,
            EnumValue::Known(EventType::EVENT_TYPE_UNSPECIFIED) => {
                return Err(self.messages.broken("an event does not say what happened"));
            }
            EnumValue::Unknown(_) => return Ok(None),
        };
        let entry = event
            .entry
            .into_option()
            .map(Entry::read)
            .transpose()
            .inspect_err(|_| self.messages.end())?;
        Ok(Some(WatchEvent {
            kind,
            name: event.name.into(),
            entry,
        }))
    }
}
