//! The time as clients read it, without a library for calendars.

use std::time::{SystemTime, UNIX_EPOCH};

const DAY_SECONDS: u64 = 86_400;

/// Now, as `2026-01-31T23:59:59.123456+00:00`.
pub(super) fn now() -> String {
    let passed = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    text(passed.as_secs(), passed.subsec_micros())
}

fn text(seconds: u64, micros: u32) -> String {
    let (year, month, day) = date(seconds / DAY_SECONDS);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}+00:00")
}

/// Year, month and day of a number of days after 1970, counted from a first
/// of March, so that a leap day is the last of its year.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468; // since 0000-03-01
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_where_calendars_are_odd() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000007+00:00"),
            (951_782_400, "2000-02-29T00:00:00.000007+00:00"),
            (951_868_799, "2000-02-29T23:59:59.000007+00:00"),
            (1_709_164_800, "2024-02-29T00:00:00.000007+00:00"),
            (1_735_689_599, "2024-12-31T23:59:59.000007+00:00"),
            (4_107_542_400, "2100-03-01T00:00:00.000007+00:00"),
        ] {
            assert_eq!(text(seconds, 7), expected);
        }
    }
}
