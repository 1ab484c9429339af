//! Whether copies are like their sources: SHA-256 on both sides.

use std::collections::BTreeMap;

use anyhow::Context as _;
use atoll_client::{Command, ExitStatus, ProcessEvent, Sandbox};
use sha2::{Digest as _, Sha256};

use super::Counter;
use crate::commands::local_tree::NAMES_AT_ONCE;
use crate::failure::Hinted;
use crate::terminal::harmless;

/// Exit status of a shell that finds no such program.
const NO_PROGRAM: i32 = 127;

/// Most bytes of an answer: a line for each of the names.
const ANSWER_BYTES_MAX: usize = NAMES_AT_ONCE * 8 * 1024;

/// A file of the sandbox, and what was sent to it or read from it.
pub(super) struct Copied {
    pub(super) path: String,
    pub(super) sum: String,
}

/// What a hash says, in hexadecimal digits.
pub(super) fn text(hash: Sha256) -> String {
    let digest = hash.finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Fails when a file of the sandbox is not like its counterpart here.
pub(super) async fn compare(
    sandbox: &Sandbox,
    copied: &[Copied],
    counter: &mut Counter,
) -> anyhow::Result<()> {
    counter.say("checking");
    // As for files, relative names are below the home of the user; but root looks at them.
    let home = sandbox.files().stat("~").await?.path.into_given();
    for group in copied.chunks(NAMES_AT_ONCE) {
        let sums = sums_inside(sandbox, group, &home).await?;
        for Copied { path, sum } in group {
            let found = sums.get(&whole(path, &home));
            if found != Some(sum) {
                return Err(Hinted::error(
                    format!("the two sides of `{}` differ", harmless(path)),
                    "it may have changed meanwhile: copy again",
                ));
            }
        }
    }
    Ok(())
}

/// A path that means the same to every program.
fn whole(path: &str, home: &str) -> String {
    match path.strip_prefix('~') {
        Some("") => home.to_owned(),
        Some(rest) if rest.starts_with('/') => format!("{home}{rest}"),
        _ => path.to_owned(),
    }
}

async fn sums_inside(
    sandbox: &Sandbox,
    group: &[Copied],
    home: &str,
) -> anyhow::Result<BTreeMap<String, String>> {
    // By a shell, so that a missing program has the status that shells give it.
    let script = "exec sha256sum --zero -- \"$@\"";
    let mut args = vec!["-c".to_owned(), script.to_owned(), "sha256sum".to_owned()];
    args.extend(group.iter().map(|copied| whole(&copied.path, home)));
    let command = Command {
        cmd: "/bin/sh".to_owned(),
        args,
        cwd: Some(home.to_owned()),
        user: Some("root".to_owned()),
        ..Command::default()
    };
    let cannot = "cannot check the copies";
    let mut process = sandbox.commands().start(&command).await.context(cannot)?;
    let (mut out, mut complaint) = (Vec::new(), Vec::new());
    let status = loop {
        match process.next().await.context(cannot)? {
            Some(ProcessEvent::Stdout(bytes)) => out.extend(bytes),
            Some(ProcessEvent::Stderr(bytes)) => complaint.extend(bytes),
            Some(ProcessEvent::Pty(_)) => {}
            Some(ProcessEvent::End(status)) => break status,
            None => anyhow::bail!("{cannot}: the check ended without a status"),
        }
        anyhow::ensure!(
            out.len() + complaint.len() <= ANSWER_BYTES_MAX,
            "{cannot}: the sandbox says too much"
        );
    };
    match status {
        ExitStatus::Exited(0) => Ok(read(&out)),
        ExitStatus::Exited(NO_PROGRAM) => Err(Hinted::error(
            format!("{cannot}: the sandbox has no `sha256sum`"),
            "--no-verify copies without a check",
        )),
        _ => {
            let complaint = harmless(String::from_utf8_lossy(&complaint).trim());
            anyhow::bail!("{cannot}: {complaint}")
        }
    }
}

/// `SUM  NAME`, each ended by a zero byte.
fn read(out: &[u8]) -> BTreeMap<String, String> {
    String::from_utf8_lossy(out)
        .split('\0')
        .filter_map(|line| {
            let (sum, name) = line.split_once("  ")?;
            Some((name.to_owned(), sum.to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_read_by_name() {
        let sums = read(b"aa  one\0bb  two  words\n\0nonsense\0");
        let expected = [("one", "aa"), ("two  words\n", "bb")];
        let expected = expected.map(|(name, sum)| (name.to_owned(), sum.to_owned()));
        assert_eq!(sums, BTreeMap::from(expected));
    }

    #[test]
    fn a_hash_is_told_in_digits() {
        let sum = text(Sha256::new_with_prefix("abc"));
        assert!(sum.starts_with("ba7816bf8f01cfea"), "{sum}");
    }
}
