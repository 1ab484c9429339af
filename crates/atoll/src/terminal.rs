//! What a person sees while something takes long: a line that moves on a
//! terminal, plain lines elsewhere, and nothing of it on standard output.

use std::io::IsTerminal as _;
use std::time::Duration;

use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};

/// Width of tables where nobody says how wide the terminal is.
const DEFAULT_WIDTH: u16 = 100;

/// An empty table in the style of all tables.
pub(crate) fn table() -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic);
    // A serial console says it has no columns at all.
    if table.width().is_none_or(|width| width == 0) {
        table.set_width(DEFAULT_WIDTH);
    }
    table
}

/// A moment for a person: `in 30 d`, `5 min ago`.
pub(crate) fn relative(at_ms: i64, now_ms: i64) -> String {
    const UNITS: [(&str, u64); 3] = [("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)];
    // Half a minute off is nothing that anybody can have meant.
    let distance = at_ms.abs_diff(now_ms);
    let unit = UNITS
        .into_iter()
        .find(|(_, millis)| distance + 30_000 >= *millis);
    let Some((name, millis)) = unit else {
        return "now".to_owned();
    };
    let count = (distance + millis / 2) / millis;
    if at_ms > now_ms {
        format!("in {count} {name}")
    } else {
        format!("{count} {name} ago")
    }
}

/// A text of somebody else that cannot move the cursor.
pub(crate) fn harmless(text: &str) -> String {
    text.chars()
        .map(atoll_guest_client::harmless_char)
        .collect()
}

/// Progress of one piece of long work.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    last: String,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Self {
            bar,
            last: String::new(),
        }
    }

    /// Something that happens once and stays readable.
    pub(crate) fn line(&mut self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => eprintln!("{text}"),
        }
    }

    /// Something that is printed by somebody else, with the moving line out of its way.
    pub(crate) fn pause(&self, print: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// What is going on right now; only a terminal shows it.
    pub(crate) fn now(&mut self, text: &str) {
        if let Some(bar) = &self.bar
            && self.last != text
        {
            text.clone_into(&mut self.last);
            bar.set_message(text.to_owned());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::relative;

    #[test]
    fn moments_are_told_from_now() {
        let now = 1_800_000_000_000;
        let minute = 60_000;
        for (distance, expected) in [
            (0, "now"),
            (-10_000, "now"),
            (-5 * minute, "5 min ago"),
            (90 * minute, "in 2 h"),
            (30 * 24 * 60 * minute - 40, "in 30 d"),
            (-26 * 60 * minute, "1 d ago"),
        ] {
            assert_eq!(relative(now + distance, now), expected, "{distance}");
        }
    }
}
