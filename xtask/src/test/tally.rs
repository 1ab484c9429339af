//! Adding up what test binaries report.

use std::fmt;

/// Results of checks and tests, with names for what did not pass.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    /// What was not run, and why.
    pub(crate) skipped: Vec<String>,
    /// Names of what failed; may be shorter than `failed` when a binary died.
    pub(crate) failures: Vec<String>,
}

impl Tally {
    /// Counts one check.
    pub(crate) fn check(&mut self, name: &str, passed: bool) {
        if passed {
            self.passed += 1;
        } else {
            self.fail(name);
        }
    }

    pub(crate) fn fail(&mut self, what: impl Into<String>) {
        self.failed += 1;
        self.failures.push(what.into());
    }

    pub(crate) fn skip(&mut self, what: impl Into<String>) {
        self.skipped.push(what.into());
    }

    /// Takes in one line of the output of a test binary.
    pub(crate) fn line(&mut self, line: &str) {
        if let Some(result) = line.strip_prefix("test result: ") {
            self.passed += number_before(result, " passed");
            self.failed += number_before(result, " failed");
        } else if let Some((name, result)) = line
            .strip_prefix("test ")
            .and_then(|test| test.split_once(" ... "))
        {
            if let Some(reason) = result.strip_prefix("ignored") {
                let reason = reason.trim_start_matches([',', ' ']);
                self.skip(if reason.is_empty() {
                    name.to_owned()
                } else {
                    format!("{name}: {reason}")
                });
            } else if result == "FAILED" {
                self.failures.push(name.to_owned());
            }
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped.extend(other.skipped);
        self.failures.extend(other.failures);
    }
}

/// The line that ends every run.
impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} passed, {} failed, {} skipped",
            self.passed,
            self.failed,
            self.skipped.len()
        )
    }
}

fn number_before(text: &str, word: &str) -> usize {
    text.find(word)
        .and_then(|end| text.get(..end))
        .and_then(|before| before.rsplit([' ', '.']).next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_several_binaries_add_up() {
        let mut tally = Tally::default();
        let output = "\
running 4 tests
test lease::tests::is_exclusive ... ok
test lease::tests::survives ... FAILED
test memory_limit_on_v2 ... ignored, full: needs a machine with cgroup v2
test plain ... ignored
test result: FAILED. 1 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.01s
test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out; finished in 0.01s";
        output.lines().for_each(|line| tally.line(line));
        assert_eq!(
            tally,
            Tally {
                passed: 13,
                failed: 1,
                skipped: vec![
                    "memory_limit_on_v2: full: needs a machine with cgroup v2".into(),
                    "plain".into()
                ],
                failures: vec!["lease::tests::survives".into()],
            }
        );
        assert_eq!(tally.to_string(), "13 passed, 1 failed, 2 skipped");
    }

    #[test]
    fn a_check_counts_as_one() {
        let mut tally = Tally::default();
        tally.check("format", true);
        tally.check("lints", false);
        assert_eq!(tally.to_string(), "1 passed, 1 failed, 0 skipped");
        assert_eq!(tally.failures, ["lints"]);
    }
}
