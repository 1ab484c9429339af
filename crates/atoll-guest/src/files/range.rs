//! `Range`: which bytes of a file a client wants.

/// What of a file is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// All of it.
    Whole,
    /// Some bytes of it, at least one.
    Part {
        /// The first one.
        start: u64,
        /// How many.
        length: u64,
    },
    /// Bytes that are not there.
    Nothing,
}

/// Reads `Range` for a file of `length` bytes.
///
/// What is not understood is ignored, as HTTP allows. So are several ranges
/// at once, which would need a form of answer that no client of ours reads,
/// and ranges of an empty file, which some clients always send.
pub(super) fn wanted(header: &str, length: u64) -> Wanted {
    let Some((unit, range)) = header.split_once('=') else {
        return Wanted::Whole;
    };
    let Some((first, last)) = range.trim().split_once('-') else {
        return Wanted::Whole;
    };
    if !unit.trim().eq_ignore_ascii_case("bytes") || length == 0 {
        return Wanted::Whole;
    }
    let (start, end) = match (position(first), position(last)) {
        (Some(start), Some(end)) if start <= end => (start, end),
        (Some(start), None) if last.is_empty() => (start, u64::MAX),
        (None, Some(0)) if first.is_empty() => return Wanted::Nothing,
        (None, Some(suffix)) if first.is_empty() => (length.saturating_sub(suffix), u64::MAX),
        _ => return Wanted::Whole,
    };
    if start >= length {
        return Wanted::Nothing;
    }
    Wanted::Part {
        start,
        length: end.min(length - 1) - start + 1,
    }
}

/// A number, however large.
fn position(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_mean_what_http_says() {
        let part = |start, length| Wanted::Part { start, length };
        for (header, expected) in [
            ("bytes=0-0", part(0, 1)),
            ("bytes=0-9", part(0, 10)),
            ("bytes=0-99", part(0, 10)),
            ("bytes=3-", part(3, 7)),
            ("bytes=9-", part(9, 1)),
            ("bytes=-3", part(7, 3)),
            ("bytes=-10", part(0, 10)),
            ("bytes=-99", part(0, 10)),
            ("Bytes= 2-4", part(2, 3)),
            ("bytes=0-99999999999999999999999", part(0, 10)),
            ("bytes=10-", Wanted::Nothing),
            ("bytes=10-20", Wanted::Nothing),
            ("bytes=-0", Wanted::Nothing),
            ("bytes=99999999999999999999999-", Wanted::Nothing),
            ("bytes=5-3", Wanted::Whole),
            ("bytes=0-1,3-4", Wanted::Whole),
            ("bytes=-", Wanted::Whole),
            ("bytes=", Wanted::Whole),
            ("bytes=a-b", Wanted::Whole),
            ("bytes=+1-2", Wanted::Whole),
            ("lines=0-1", Wanted::Whole),
            ("0-1", Wanted::Whole),
            ("", Wanted::Whole),
        ] {
            assert_eq!(wanted(header, 10), expected, "{header}");
        }
        for header in ["bytes=0-0", "bytes=0-", "bytes=-1"] {
            assert_eq!(wanted(header, 0), Wanted::Whole, "{header}");
        }
    }
}
