//! What a probe found out about the program behind a tier, kept for as long as
//! neither the program nor the boot of the host changes.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::host::HostObject;
use crate::host::file::write_state;
use crate::host::process::boot_id;
use crate::record::now_ms;

/// Whether a tier can be used on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TierVerdict {
    /// A real sandbox ran a command.
    Usable {
        /// Time from the wish to the end of that command, in milliseconds.
        milliseconds: u64,
    },
    /// It did not, or not in time.
    Refused {
        /// Why.
        reason: String,
    },
}

/// A file that has not been replaced, on a host that has not been restarted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Subject {
    program: PathBuf,
    modified_ns: i64,
    modified_s: i64,
    bytes: u64,
    boot: String,
}

impl Subject {
    fn of(program: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(program)?;
        Ok(Self {
            program: program.to_owned(),
            modified_ns: metadata.mtime_nsec(),
            modified_s: metadata.mtime(),
            bytes: metadata.len(),
            boot: boot_id()?,
        })
    }
}

/// How long a refusal counts: a host that was too busy once is so for a while.
const REFUSAL_BOUND_MS: u64 = 10 * 60 * 1000;

#[derive(Debug, Serialize, Deserialize)]
struct Remembered {
    subject: Subject,
    verdict: TierVerdict,
    /// Milliseconds since 1970.
    at_ms: u64,
}

impl Remembered {
    fn holds(&self, subject: &Subject, now_ms: u64) -> bool {
        let age = now_ms.checked_sub(self.at_ms);
        let is_fresh = match self.verdict {
            TierVerdict::Usable { .. } => true,
            TierVerdict::Refused { .. } => age.is_some_and(|age| age < REFUSAL_BOUND_MS),
        };
        self.subject == *subject && is_fresh
    }
}

fn place(home: &Path) -> PathBuf {
    home.join("gvisor-probe.json")
}

/// What the last probe of `program` in the home at `home` found, if it still holds.
#[must_use]
pub fn remembered_verdict(home: &Path, program: &Path) -> Option<TierVerdict> {
    let remembered: Remembered = serde_json::from_slice(&fs::read(place(home)).ok()?).ok()?;
    let holds = remembered.holds(&Subject::of(program).ok()?, now_ms());
    holds.then_some(remembered.verdict)
}

/// Keeps what a probe of `program` found.
///
/// # Errors
/// When it cannot be written; then the next start probes again.
pub fn remember_verdict(home: &Path, program: &Path, verdict: &TierVerdict) -> io::Result<()> {
    write_state(
        HostObject::TierVerdict,
        &place(home),
        &Remembered {
            subject: Subject::of(program)?,
            verdict: verdict.clone(),
            at_ms: now_ms(),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_holds_until_the_program_changes() {
        let home = tempfile::tempdir().unwrap();
        let program = home.path().join("runsc");
        fs::write(&program, "one").unwrap();
        assert_eq!(remembered_verdict(home.path(), &program), None);
        let verdict = TierVerdict::Usable { milliseconds: 7 };
        remember_verdict(home.path(), &program, &verdict).unwrap();
        assert_eq!(remembered_verdict(home.path(), &program), Some(verdict));
        assert_eq!(remembered_verdict(home.path(), home.path()), None);
        fs::write(&program, "another").unwrap();
        assert_eq!(remembered_verdict(home.path(), &program), None);
    }

    #[test]
    fn a_refusal_is_forgotten_after_a_while() {
        let program = std::env::current_exe().unwrap();
        let subject = Subject::of(&program).unwrap();
        let of = |verdict| Remembered {
            subject: subject.clone(),
            verdict,
            at_ms: 1_000,
        };
        let refused = of(TierVerdict::Refused {
            reason: "too slow".to_owned(),
        });
        assert!(refused.holds(&subject, 1_000 + REFUSAL_BOUND_MS - 1));
        assert!(!refused.holds(&subject, 1_000 + REFUSAL_BOUND_MS));
        // A clock that was set back makes it count no longer.
        assert!(!refused.holds(&subject, 999));
        assert!(of(TierVerdict::Usable { milliseconds: 1 }).holds(&subject, u64::MAX));
    }
}
