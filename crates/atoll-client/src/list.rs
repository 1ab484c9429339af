//! Lists of sandboxes, page by page.

use std::collections::BTreeMap;

use atoll_protocol::rest::{ListedSandbox, SandboxState};
use http::Method;

use crate::client::Client;
use crate::error::ClientError;
use crate::rest::Reply;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

/// Where the next page begins.
const NEXT_TOKEN: &str = "x-next-token";

/// Which sandboxes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// In one of these states; all when empty.
    pub states: Vec<SandboxState>,
    /// With all of this written on them.
    pub metadata: BTreeMap<String, String>,
    /// Of this template.
    pub template: Option<String>,
    /// Entries of a page, 1 to 100.
    pub page: Option<u32>,
}

/// A list that is read page by page.
#[derive(Debug, Clone)]
pub struct SandboxList {
    client: Client,
    query: String,
    next: Next,
}

#[derive(Debug, Clone)]
pub(crate) enum Next {
    First,
    Token(String),
    Nothing,
}

impl SandboxList {
    pub(crate) fn new(client: Client, options: &ListOptions) -> Self {
        Self {
            client,
            query: query(options),
            next: Next::First,
        }
    }

    /// The next page; `None` after the last.
    ///
    /// # Errors
    /// When the server cannot be asked, or refuses.
    pub async fn next_page(&mut self) -> Result<Option<Vec<ListedSandbox>>, ClientError> {
        let mut target = format!("/v2/sandboxes?{}", self.query);
        match &self.next {
            Next::First => {}
            Next::Token(token) => {
                target.push_str("&nextToken=");
                target.extend(encoded(token));
            }
            Next::Nothing => return Ok(None),
        }
        let reply = self.client.rest().ask(Method::GET, &target).await?;
        let page = reply.json()?;
        self.next = next_token(&reply);
        Ok(Some(page))
    }

    /// All of it.
    ///
    /// # Errors
    /// As for [`Self::next_page`].
    pub async fn all(mut self) -> Result<Vec<ListedSandbox>, ClientError> {
        let mut all = Vec::new();
        while let Some(page) = self.next_page().await? {
            // A server that always has a next page must not hold us for ever.
            if page.is_empty() {
                break;
            }
            all.extend(page);
        }
        Ok(all)
    }
}

pub(crate) fn next_token(reply: &Reply) -> Next {
    let token = reply.headers.get(NEXT_TOKEN);
    match token.and_then(|token| token.to_str().ok()) {
        Some(token) if !token.is_empty() => Next::Token(token.to_owned()),
        _ => Next::Nothing,
    }
}

impl Next {
    pub(crate) fn token(&self) -> Option<&str> {
        match self {
            Self::Token(token) => Some(token),
            Self::First | Self::Nothing => None,
        }
    }
}

fn query(options: &ListOptions) -> String {
    let mut pairs = Vec::new();
    if !options.metadata.is_empty() {
        // Each part once for itself, once for the list of parts, once for the query.
        let parts: Vec<String> = options
            .metadata
            .iter()
            .map(|(key, value)| {
                let twice =
                    |text: &str| encoded(&encoded(text).collect::<String>()).collect::<String>();
                format!("{}={}", twice(key), twice(value))
            })
            .collect();
        pairs.push(format!("metadata={}", encoded(&parts.join("&"))));
    }
    if !options.states.is_empty() {
        let names: Vec<&str> = options.states.iter().map(|state| name(*state)).collect();
        pairs.push(format!("state={}", names.join(",")));
    }
    if let Some(template) = &options.template {
        pairs.push(format!("template={}", encoded(template)));
    }
    if let Some(page) = options.page {
        pairs.push(format!("limit={page}"));
    }
    pairs.join("&")
}

fn name(state: SandboxState) -> &'static str {
    match state {
        SandboxState::Running => "running",
        SandboxState::Paused => "paused",
    }
}

pub(crate) fn encoded(text: &str) -> percent_encoding::PercentEncode<'_> {
    utf8_percent_encode(text, NON_ALPHANUMERIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_encoded_as_e2bs_clients_do() {
        let options = ListOptions {
            metadata: [("a b".to_owned(), "c&d".to_owned())].into(),
            states: vec![SandboxState::Running, SandboxState::Paused],
            ..ListOptions::default()
        };
        assert_eq!(
            query(&options),
            "metadata=a%252520b%3Dc%252526d&state=running,paused"
        );
    }
}
