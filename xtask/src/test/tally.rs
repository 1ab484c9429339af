//! Adding up what test binaries report.

use std::collections::BTreeSet;
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
    /// Names of what passed.
    pub(crate) passes: BTreeSet<String>,
    /// Names of what failed among the others and passed alone; each of them
    /// counts as passed, and as something to mend.
    pub(crate) unsteady: Vec<String>,
    /// Test binaries that began and have not said how it ended.
    pub(crate) unended: usize,
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
            self.unended = self.unended.saturating_sub(1);
        } else if is_beginning(line) {
            self.unended += 1;
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
            } else if result == "ok" {
                self.passes.insert(name.to_owned());
            }
        }
    }

    /// Names to try alone, unless too much failed for that to mean anything.
    pub(crate) fn second_chances(&self, most: usize) -> Option<&[String]> {
        let all_are_named = self.failures.len() == self.failed && self.unended == 0;
        (self.failed > 0 && self.failed <= most && all_are_named).then_some(&self.failures)
    }

    /// Takes in how the failures of this tally fared alone. One that did not
    /// say by its name that it passed has failed, and so have all when something
    /// failed alone that was not asked for.
    pub(crate) fn retried(&mut self, alone: &Self) {
        let is_asked_for = |name| self.failures.contains(name);
        let is_whole = alone.failures.len() == alone.failed && alone.unended == 0;
        if !is_whole || !alone.failures.iter().all(is_asked_for) {
            return;
        }
        let (unsteady, failures) = std::mem::take(&mut self.failures)
            .into_iter()
            .partition(|name| alone.passes.contains(name) && !alone.failures.contains(name));
        self.failures = failures;
        self.unsteady = unsteady;
        self.passed += self.unsteady.len();
        self.failed = self.failures.len();
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped.extend(other.skipped);
        self.failures.extend(other.failures);
        self.passes.extend(other.passes);
        self.unsteady.extend(other.unsteady);
        self.unended += other.unended;
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

/// `running 4 tests`, the first line of a test binary.
fn is_beginning(line: &str) -> bool {
    line.strip_prefix("running ")
        .and_then(|rest| rest.strip_suffix(" tests").or(rest.strip_suffix(" test")))
        .is_some_and(|number| number.parse::<usize>().is_ok())
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
                passes: ["lease::tests::is_exclusive".into()].into(),
                unsteady: Vec::new(),
                unended: 0,
            }
        );
        assert_eq!(tally.to_string(), "13 passed, 1 failed, 2 skipped");
    }

    #[test]
    fn what_passes_alone_is_unsteady_and_everything_else_has_failed() {
        let failed = ["races", "broken", "elsewhere_too", "never_ran"];
        let mut tally = Tally {
            passed: 7,
            failed: failed.len(),
            failures: failed.map(str::to_owned).into(),
            ..Tally::default()
        };
        assert_eq!(tally.second_chances(3), None, "too many");
        assert_eq!(tally.second_chances(4), Some(tally.failures.as_slice()));
        let mut alone = Tally::default();
        let output = "\
test races ... ok
test broken ... FAILED
test elsewhere_too ... ok
test elsewhere_too ... FAILED
test result: FAILED. 2 passed; 2 failed; 0 ignored; 0 measured; 9 filtered out; finished in 0.01s";
        output.lines().for_each(|line| alone.line(line));
        tally.retried(&alone);
        assert_eq!(tally.to_string(), "8 passed, 3 failed, 0 skipped");
        assert_eq!(tally.failures, ["broken", "elsewhere_too", "never_ran"]);
        assert_eq!(tally.unsteady, ["races"]);
    }

    #[test]
    fn a_binary_that_died_gets_no_second_chance() {
        let tally = Tally {
            failed: 2,
            failures: vec!["one".into()],
            ..Tally::default()
        };
        assert_eq!(tally.second_chances(5), None);
        assert_eq!(Tally::default().second_chances(5), None);

        let mut tally = Tally::default();
        let output = "\
running 1 test
test races ... FAILED
test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
running 2 tests
test first ... ok";
        output.lines().for_each(|line| tally.line(line));
        assert_eq!(tally.unended, 1);
        assert_eq!(tally.second_chances(5), None);
        tally.line("test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
        assert_eq!(tally.second_chances(5), Some(tally.failures.as_slice()));
    }

    #[test]
    fn nothing_is_forgiven_when_the_second_run_fails_elsewhere() {
        let mut tally = Tally {
            failed: 1,
            failures: vec!["races".into()],
            ..Tally::default()
        };
        let passes: BTreeSet<String> = ["races".to_owned()].into();
        let elsewhere = Tally {
            failed: 1,
            failures: vec!["`cargo test` ended with a signal".into()],
            passes: passes.clone(),
            ..Tally::default()
        };
        tally.retried(&elsewhere);
        assert_eq!(tally.to_string(), "0 passed, 1 failed, 0 skipped");
        let died = Tally {
            unended: 1,
            passes: passes.clone(),
            ..Tally::default()
        };
        tally.retried(&died);
        assert_eq!(tally.to_string(), "0 passed, 1 failed, 0 skipped");
        tally.retried(&Tally {
            passes,
            ..Tally::default()
        });
        assert_eq!(tally.to_string(), "1 passed, 0 failed, 0 skipped");
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
