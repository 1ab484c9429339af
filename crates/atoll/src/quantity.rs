//! Sizes, shares and durations as people type them.

use std::time::Duration;

/// MiB from `512M`, `1G`, `1.5GiB`, `800MB` or a plain number of MiB.
pub(crate) fn mebibytes(text: &str) -> Result<u64, String> {
    let bytes = bytes_with_default(text, 1024.0 * 1024.0)?;
    Ok(bytes.div_ceil(1024 * 1024))
}

/// Bytes from `10M`, `64k` or a plain number of bytes.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    bytes_with_default(text, 1.0)
}

fn bytes_with_default(text: &str, plain: f64) -> Result<u64, String> {
    let text = text.trim();
    let split = text
        .find(|character: char| !(character.is_ascii_digit() || character == '.'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number
        .parse()
        .map_err(|_| format!("`{text}` is not a size (examples: 512M, 2G)"))?;
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" => plain,
        "b" => 1.0,
        "k" | "kb" | "kib" => 1024.0,
        "m" | "mb" | "mib" => 1024.0 * 1024.0,
        "g" | "gb" | "gib" => 1024.0 * 1024.0 * 1024.0,
        "t" | "tb" | "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        other => return Err(format!("`{other}` is not a unit of size (k, M, G, T)")),
    };
    whole(number * factor).ok_or_else(|| format!("`{text}` is too large"))
}

/// Thousandths of a core from `2`, `0.5` or `250m`.
pub(crate) fn cpu_millis(text: &str) -> Result<u64, String> {
    let invalid = || format!("`{text}` is not a number of CPUs (examples: 2, 0.5, 250m)");
    let (number, factor) = text
        .strip_suffix('m')
        .map_or((text, 1000.0), |number| (number, 1.0));
    let number: f64 = number.parse().map_err(|_| invalid())?;
    whole(number * factor).ok_or_else(invalid)
}

/// A duration from `30`, `1.5s`, `250ms`, `5m`, `2h` or `30d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    duration_or_none(text).and_then(|duration| {
        if duration.is_zero() {
            Err(not_a_duration(text))
        } else {
            Ok(duration)
        }
    })
}

fn not_a_duration(text: &str) -> String {
    format!("`{text}` is not a duration (examples: 30s, 5m, 2h, 30d)")
}

/// The same, or no time at all (`0`).
pub(crate) fn duration_or_none(text: &str) -> Result<Duration, String> {
    let invalid = || not_a_duration(text);
    let split = text
        .find(|character: char| !(character.is_ascii_digit() || character == '.'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| invalid())?;
    let millis = match unit {
        "ms" => 1.0,
        "" | "s" => 1000.0,
        "m" | "min" => 60_000.0,
        "h" => 3_600_000.0,
        "d" => 86_400_000.0,
        _ => return Err(invalid()),
    };
    whole(number * millis)
        .map(Duration::from_millis)
        .ok_or_else(invalid)
}

/// The nearest whole number, if it is one that a `u64` holds exactly enough.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the range is checked first"
)]
fn whole(value: f64) -> Option<u64> {
    (value.is_finite() && (0.0..9.0e15).contains(&value)).then(|| value.round() as u64)
}

/// Bytes for a person.
pub(crate) fn show_bytes(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    for (name, unit) in UNITS {
        if bytes >= unit {
            let tenths = bytes.saturating_mul(10) / unit;
            return format!("{}.{} {name}", tenths / 10, tenths % 10);
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(mebibytes("512M"), Ok(512));
        assert_eq!(mebibytes("512"), Ok(512));
        assert_eq!(mebibytes("1.5GiB"), Ok(1536));
        assert_eq!(mebibytes("1k"), Ok(1));
        assert_eq!(bytes("64k"), Ok(65536));
        assert!(mebibytes("lots").is_err());
        assert!(mebibytes("1X").is_err());
        assert!(mebibytes("-1").is_err());
        assert!(mebibytes("99999999999999T").is_err());
        assert_eq!(show_bytes(1536 << 20), "1.5 GiB");
    }

    #[test]
    fn cpus() {
        assert_eq!(cpu_millis("2"), Ok(2000));
        assert_eq!(cpu_millis("0.5"), Ok(500));
        assert_eq!(cpu_millis("250m"), Ok(250));
        assert!(cpu_millis("many").is_err());
    }

    #[test]
    fn durations() {
        assert_eq!(duration("30"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(duration("30d"), Ok(Duration::from_secs(30 * 86_400)));
        assert_eq!(duration_or_none("0"), Ok(Duration::ZERO));
        assert!(duration("0").is_err());
        assert!(duration("soon").is_err());
    }
}
