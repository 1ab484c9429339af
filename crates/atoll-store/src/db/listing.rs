//! Lists of sandboxes, page by page.
//!
//! A cursor is the place of the last row of a page, so that sandboxes that
//! come and go between two pages make nobody appear twice or be left out.
//! What SQLite and PostgreSQL cannot compare alike (metadata) is compared here.

use std::fmt;
use std::str::FromStr;

use super::{Database, DatabaseError, Metadata, Sandbox, SandboxState, TenantId, read};

/// Rows read at a time while a filter is applied.
const BATCH: i64 = 256;

/// By when sandboxes began to run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// The oldest first.
    Ascending,
    /// The newest first.
    #[default]
    Descending,
}

/// What to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxQuery {
    /// States to list.
    pub states: Vec<SandboxState>,
    /// Only those of this template, by id or name.
    pub template: Option<String>,
    /// Only those that have all of this.
    pub metadata: Metadata,
    /// Only those of this agent.
    pub agent_id: Option<String>,
    /// Only those of this task.
    pub task_id: Option<String>,
    /// Only those that began to run then or later.
    pub started_from_ms: Option<i64>,
    /// Which come first.
    pub order: Order,
    /// How many at most, at least 1.
    pub limit: usize,
    /// Where the page before ended.
    pub after: Option<Cursor>,
}

impl SandboxQuery {
    /// The first `limit` sandboxes in any of these states.
    #[must_use]
    pub fn new(states: &[SandboxState], limit: usize) -> Self {
        Self {
            states: states.to_vec(),
            template: None,
            metadata: Metadata::default(),
            agent_id: None,
            task_id: None,
            started_from_ms: None,
            order: Order::default(),
            limit,
            after: None,
        }
    }

    fn wants(&self, sandbox: &Sandbox) -> bool {
        let template = self.template.as_deref();
        self.states.contains(&sandbox.state)
            && template
                .is_none_or(|name| sandbox.template_id == name || sandbox.template_name == name)
            && sandbox.metadata.includes(&self.metadata)
            && (self.agent_id.is_none() || sandbox.agent_id == self.agent_id)
            && (self.task_id.is_none() || sandbox.task_id == self.task_id)
    }
}

/// A part of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxPage {
    /// In order.
    pub sandboxes: Vec<Sandbox>,
    /// Where to go on; none on the last page.
    pub next: Option<Cursor>,
}

/// A place in a list; as text, something to hand out and get back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    started_at_ms: i64,
    sandbox_id: String,
    order: Order,
}

/// The text is no cursor, or one of another order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a place in this list")]
pub struct InvalidCursor(String);

impl Cursor {
    /// The place that `text` names in a list of this order.
    ///
    /// # Errors
    /// When it names none.
    pub fn parse(text: &str, order: Order) -> Result<Self, InvalidCursor> {
        let cursor: Self = text.parse()?;
        if cursor.order == order {
            Ok(cursor)
        } else {
            Err(InvalidCursor(text.to_owned()))
        }
    }
}

impl Order {
    const fn word(self) -> &'static str {
        match self {
            Self::Ascending => "asc",
            Self::Descending => "desc",
        }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = self.order.word();
        write!(out, "{}.{}.{order}", self.started_at_ms, self.sandbox_id)
    }
}

impl FromStr for Cursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let parsed = || {
            let mut parts = text.split('.');
            let started_at_ms = parts.next()?.parse().ok()?;
            let sandbox_id = parts.next()?;
            let order = match parts.next()? {
                "asc" => Order::Ascending,
                "desc" => Order::Descending,
                _ => return None,
            };
            let is_id = !sandbox_id.is_empty()
                && sandbox_id.len() <= 64
                && sandbox_id.bytes().all(|byte| byte.is_ascii_alphanumeric());
            (is_id && parts.next().is_none()).then(|| Self {
                started_at_ms,
                sandbox_id: sandbox_id.to_owned(),
                order,
            })
        };
        parsed().ok_or_else(|| InvalidCursor(text.to_owned()))
    }
}

const DESCENDING: &str = "SELECT * FROM sandboxes
     WHERE tenant_id = $1 AND started_at_ms >= $2
       AND (started_at_ms < $3 OR (started_at_ms = $3 AND sandbox_id < $4))
     ORDER BY started_at_ms DESC, sandbox_id DESC LIMIT $5";

const ASCENDING: &str = "SELECT * FROM sandboxes
     WHERE tenant_id = $1 AND started_at_ms >= $2
       AND (started_at_ms > $3 OR (started_at_ms = $3 AND sandbox_id > $4))
     ORDER BY started_at_ms, sandbox_id LIMIT $5";

impl Database {
    /// A page of the sandboxes of a tenant.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn list_sandboxes(
        &self,
        tenant: TenantId,
        query: &SandboxQuery,
    ) -> Result<SandboxPage, DatabaseError> {
        let tenant = tenant.to_string();
        let (statement, start) = match query.order {
            Order::Ascending => (ASCENDING, i64::MIN),
            Order::Descending => (DESCENDING, i64::MAX),
        };
        let mut place = match &query.after {
            Some(cursor) => (cursor.started_at_ms, cursor.sandbox_id.clone()),
            None => (start, String::new()),
        };
        let limit = query.limit.max(1);
        let mut sandboxes = Vec::new();
        loop {
            let batch: Vec<Sandbox> = read!(self, |pool| sqlx::query_as(statement)
                .bind(&tenant)
                .bind(query.started_from_ms.unwrap_or(i64::MIN))
                .bind(place.0)
                .bind(&place.1)
                .bind(BATCH)
                .fetch_all(pool)
                .await?);
            let Some(last) = batch.last() else { break };
            place = (last.started_at_ms, last.sandbox_id.clone());
            sandboxes.extend(batch.into_iter().filter(|sandbox| query.wants(sandbox)));
            // One more than asked for shows that there is another page.
            if sandboxes.len() > limit {
                break;
            }
        }
        let has_more = sandboxes.len() > limit;
        sandboxes.truncate(limit);
        let next = sandboxes.last().filter(|_| has_more).map(|last| Cursor {
            started_at_ms: last.started_at_ms,
            sandbox_id: last.sandbox_id.clone(),
            order: query.order,
        });
        Ok(SandboxPage { sandboxes, next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_text_and_belong_to_an_order() {
        let cursor = Cursor {
            started_at_ms: 1_700_000_000_123,
            sandbox_id: "iabc0".to_owned(),
            order: Order::Ascending,
        };
        let text = cursor.to_string();
        assert_eq!(Cursor::parse(&text, Order::Ascending), Ok(cursor));
        assert!(Cursor::parse(&text, Order::Descending).is_err());
    }

    #[test]
    fn other_texts_are_no_cursors() {
        for text in [
            "",
            ".",
            "1.i",
            "x.iabc.asc",
            "1..asc",
            "1.i-'.asc",
            "1.i.up",
            "1.i.asc.2",
        ] {
            assert!(text.parse::<Cursor>().is_err(), "{text}");
        }
    }
}
