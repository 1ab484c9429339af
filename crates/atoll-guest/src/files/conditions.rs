//! Whether a file changed since the client saw it.
//!
//! The time of the last change is all that is known: there are no entity
//! tags, so a condition on one never holds.

use std::fs::Metadata as Stat;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::{HeaderMap, HeaderName, header};

/// First second that HTTP cannot write: the year 10000.
const END_OF_TIME: u64 = 253_402_300_800;

/// What the conditions of a request ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The file.
    Send,
    /// Nothing: the client has it.
    NotModified,
    /// Nothing: the client wants another one.
    Failed,
}

/// When a file last changed, to the second. Whoever owns a file may set any
/// time, so it may be one that HTTP cannot write.
pub(super) fn modified(stat: &Stat) -> Option<SystemTime> {
    let seconds = u64::try_from(stat.mtime()).ok()?;
    (seconds < END_OF_TIME).then(|| UNIX_EPOCH + Duration::from_secs(seconds))
}

/// Weighs the conditions in the order that HTTP prescribes.
pub(super) fn verdict(headers: &HeaderMap, modified: Option<SystemTime>) -> Verdict {
    if let Some(tags) = headers.get(header::IF_MATCH) {
        if tags != "*" {
            return Verdict::Failed;
        }
    } else if let (Some(known), Some(modified)) =
        (date(headers, &header::IF_UNMODIFIED_SINCE), modified)
        && modified > known
    {
        return Verdict::Failed;
    }
    if let Some(tags) = headers.get(header::IF_NONE_MATCH) {
        if tags == "*" {
            return Verdict::NotModified;
        }
    } else if let (Some(known), Some(modified)) =
        (date(headers, &header::IF_MODIFIED_SINCE), modified)
        && modified <= known
    {
        return Verdict::NotModified;
    }
    Verdict::Send
}

/// Whether a range still belongs to what the client has of the file.
pub(super) fn range_counts(headers: &HeaderMap, modified: Option<SystemTime>) -> bool {
    !headers.contains_key(header::IF_RANGE)
        || date(headers, &header::IF_RANGE).is_some_and(|known| Some(known) == modified)
}

fn date(headers: &HeaderMap, name: &HeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const THEN: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.clone(), value.parse().unwrap()))
            .collect()
    }

    fn then() -> Option<SystemTime> {
        Some(httpdate::parse_http_date(THEN).unwrap())
    }

    #[test]
    fn conditions_weigh_as_http_says() {
        use header::{IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_UNMODIFIED_SINCE};
        for (pairs, expected) in [
            (vec![], Verdict::Send),
            (vec![(IF_MODIFIED_SINCE, BEFORE)], Verdict::Send),
            (vec![(IF_MODIFIED_SINCE, THEN)], Verdict::NotModified),
            (vec![(IF_MODIFIED_SINCE, AFTER)], Verdict::NotModified),
            (vec![(IF_MODIFIED_SINCE, "yesterday")], Verdict::Send),
            (vec![(IF_UNMODIFIED_SINCE, BEFORE)], Verdict::Failed),
            (vec![(IF_UNMODIFIED_SINCE, THEN)], Verdict::Send),
            (vec![(IF_UNMODIFIED_SINCE, AFTER)], Verdict::Send),
            (vec![(IF_MATCH, "*")], Verdict::Send),
            (vec![(IF_MATCH, "\"tag\"")], Verdict::Failed),
            (
                vec![(IF_MATCH, "*"), (IF_UNMODIFIED_SINCE, BEFORE)],
                Verdict::Send,
            ),
            (vec![(IF_NONE_MATCH, "*")], Verdict::NotModified),
            (
                vec![(IF_NONE_MATCH, "\"tag\""), (IF_MODIFIED_SINCE, AFTER)],
                Verdict::Send,
            ),
            (
                vec![(IF_UNMODIFIED_SINCE, BEFORE), (IF_MODIFIED_SINCE, AFTER)],
                Verdict::Failed,
            ),
        ] {
            assert_eq!(verdict(&headers(&pairs), then()), expected, "{pairs:?}");
        }
        let asked = headers(&[(IF_MODIFIED_SINCE, AFTER), (IF_UNMODIFIED_SINCE, BEFORE)]);
        assert_eq!(verdict(&asked, None), Verdict::Send);
    }

    #[test]
    fn a_range_counts_for_the_same_file_only() {
        let counts = |value| range_counts(&headers(&[(header::IF_RANGE, value)]), then());
        assert!(counts(THEN));
        assert!(!counts(BEFORE));
        assert!(!counts(AFTER));
        assert!(!counts("\"tag\""));
        assert!(range_counts(&HeaderMap::new(), then()));
        assert!(!range_counts(&headers(&[(header::IF_RANGE, THEN)]), None));
    }
}
