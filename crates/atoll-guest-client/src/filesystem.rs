//! The file system of a sandbox: what there is, and changes to it. Paths are
//! the guest's; relative ones start at the user's home.

use atoll_protocol::connect::Code;
use atoll_protocol::envd::filesystem::{
    EntryInfo, ListDirRequest, MakeDirRequest, MakeDirResponse, MoveRequest, MoveResponse,
    RemoveRequest, RemoveResponse, StatRequest, StatResponse,
};
use buffa::Message;
use bytes::Bytes;
use http::Request;

use crate::answer::Answer;
use crate::client::{GuestClient, full};
use crate::entry::Entry;
use crate::error::GuestError;
use crate::listing::Listing;
use crate::messages::{UNARY_TYPE, decode};
use crate::pool::Outgoing;

impl GuestClient {
    /// What a path is.
    ///
    /// # Errors
    /// `Rpc { code: NotFound }` when there is nothing.
    pub async fn stat(&self, path: &str, user: Option<&str>) -> Result<Entry, GuestError> {
        let message = StatRequest {
            path: path.to_owned(),
            ..Default::default()
        };
        let request = self.unary("/filesystem.Filesystem/Stat", &message, user)?;
        let answer: StatResponse = self.whole(Outgoing::Repeatable(request)).await?;
        entry(answer.entry.into_option())
    }

    /// Makes a directory with those above it; `false` when it is there already.
    ///
    /// # Errors
    /// `Rpc { code: InvalidArgument }` when something else is there.
    pub async fn make_dir(&self, path: &str, user: Option<&str>) -> Result<bool, GuestError> {
        let message = MakeDirRequest {
            path: path.to_owned(),
            ..Default::default()
        };
        let request = self.unary("/filesystem.Filesystem/MakeDir", &message, user)?;
        match self.whole::<MakeDirResponse>(once(request)).await {
            Ok(answer) => entry(answer.entry.into_option()).map(|_| true),
            Err(GuestError::Rpc {
                code: Code::AlreadyExists,
                ..
            }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Gives a file or directory another name, with the directories above it.
    ///
    /// # Errors
    /// `Rpc { code: NotFound }` when there is nothing at `source`.
    pub async fn rename(
        &self,
        source: &str,
        destination: &str,
        user: Option<&str>,
    ) -> Result<Entry, GuestError> {
        let message = MoveRequest {
            source: source.to_owned(),
            destination: destination.to_owned(),
            ..Default::default()
        };
        let request = self.unary("/filesystem.Filesystem/Move", &message, user)?;
        let answer: MoveResponse = self.whole(once(request)).await?;
        entry(answer.entry.into_option())
    }

    /// What is in a directory, `depth` levels down; none means one. Names are
    /// plain file names, paths are what the guest says. The same name may
    /// come twice.
    ///
    /// # Errors
    /// `Rpc { code: NotFound }` when there is nothing, `InvalidArgument` when
    /// it is no directory, [`GuestError::TooLarge`] when there is too much.
    pub async fn list_dir(
        &self,
        path: &str,
        depth: u32,
        user: Option<&str>,
    ) -> Result<Vec<Entry>, GuestError> {
        let message = ListDirRequest {
            path: path.to_owned(),
            depth,
            ..Default::default()
        };
        let request = self.unary("/filesystem.Filesystem/ListDir", &message, user)?;
        let answer = self.unary_answer(Outgoing::Repeatable(request)).await?;
        let mut listing = Listing::within(self.narrow().map(|narrow| narrow.list_bytes));
        answer.each_chunk(|chunk| listing.push(&chunk)).await?;
        listing.finish()
    }

    /// Removes a file, or a directory with all that is in it; nothing there
    /// is a success too.
    ///
    /// # Errors
    /// `Rpc` when the guest refuses.
    pub async fn remove(&self, path: &str, user: Option<&str>) -> Result<(), GuestError> {
        let message = RemoveRequest {
            path: path.to_owned(),
            ..Default::default()
        };
        let request = self.unary("/filesystem.Filesystem/Remove", &message, user)?;
        self.whole::<RemoveResponse>(once(request)).await?;
        Ok(())
    }

    async fn unary_answer(&self, outgoing: Outgoing) -> Result<Answer, GuestError> {
        let answer = self.ask(outgoing).await?.success().await?;
        answer.of_type(UNARY_TYPE)?.delimited()
    }

    async fn whole<M: Message>(&self, outgoing: Outgoing) -> Result<M, GuestError> {
        decode(&self.unary_answer(outgoing).await?.whole_body().await?)
    }
}

fn once(request: Request<Bytes>) -> Outgoing {
    Outgoing::Once(request.map(full))
}

fn entry(info: Option<EntryInfo>) -> Result<Entry, GuestError> {
    info.map_or_else(
        || {
            Err(GuestError::Protocol(
                "an answer lacks the entry that it is about".to_owned(),
            ))
        },
        Entry::read,
    )
}
