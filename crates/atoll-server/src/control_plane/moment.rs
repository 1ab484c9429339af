//! Moments: milliseconds inside, RFC 3339 outside.

use jiff::Timestamp;

/// A moment as clients read it.
pub(super) fn rfc3339(at_ms: i64) -> String {
    // Only a moment thousands of years away has no form.
    Timestamp::from_millisecond(at_ms)
        .unwrap_or(Timestamp::UNIX_EPOCH)
        .to_string()
}

/// A moment that a client wrote. In a query, a `+` arrives as a space.
pub(super) fn parse(text: &str) -> Option<i64> {
    let moment: Timestamp = text.replace(' ', "+").parse().ok()?;
    Some(moment.as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_have_a_zone() {
        assert_eq!(rfc3339(1_800_000_000_123), "2027-01-15T08:00:00.123Z");
        assert_eq!(rfc3339(i64::MAX), "1970-01-01T00:00:00Z");
        let moment = Some(1_800_000_000_123);
        assert_eq!(parse("2027-01-15T08:00:00.123Z"), moment);
        assert_eq!(parse("2027-01-15T09:00:00.123+01:00"), moment);
        assert_eq!(parse("2027-01-15T09:00:00.123 01:00"), moment);
        for text in ["", "now", "2027-01-15", "2027-01-15T08:00:00"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
