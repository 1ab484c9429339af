//! Our tables in the kernel, through the `nft` program and, where that is too slow or
//! has no words, without it.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

use super::error::{NetworkError, kernel};
use super::firewall::{Family, INNER_SOURCE, TABLE};
use super::netlink::is;
use super::nfnetlink::{Attributes, Message, Netfilter, with_netfilter};
use super::slot::GUEST;
use crate::host::program;

/// How long one run of `nft` may take; it waits for other changes of the ruleset.
const RUN_BOUND_SECONDS: u32 = 10;
/// Where distributions put it; the monitor's `PATH` may lack `sbin`.
const PROGRAMS: [&str; 3] = ["/usr/sbin/nft", "/sbin/nft", "nft"];

/// Whether a table that `nft` lists is one that we made.
pub(super) fn is_our_table(family: &str, table: &str) -> bool {
    table == TABLE && Family::ALL.iter().any(|ours| ours.name() == family)
}

/// Lines that leave none of our tables; the first of each makes sure there is one to delete.
fn removal() -> String {
    let families = Family::ALL.map(Family::name);
    families
        .map(|family| format!("table {family} {TABLE}\ndelete table {family} {TABLE}\n"))
        .concat()
}

/// Puts `ruleset` in place of whatever our tables held, in one step.
pub(super) fn replace_tables(ruleset: &str) -> Result<(), NetworkError> {
    // Nothing is removed where nothing is: `nft` would wait about 20 ms for that.
    let removal = if tables_exist()? {
        removal()
    } else {
        String::new()
    };
    let script = format!("{removal}{ruleset}");
    run("load the rules for sandboxes", &["--file", "-"], &script)?;
    with_netfilter(|kernel| kernel.transact(&[inner_source_rule()]))
        .map_err(kernel("add the rule for ICMP errors"))
}

/// Removes our tables; those that are not there are removed already.
///
/// By message, not by `nft`: the last sandbox of a host waits for this.
pub(super) fn remove_tables() -> Result<(), NetworkError> {
    let messages: Vec<Message> = Family::ALL
        .into_iter()
        .flat_map(|family| {
            // The first makes sure that there is one to delete.
            let make = table_message(NEW_TABLE, FLAG_CREATE, family);
            [make, table_message(DELETE_TABLE, 0, family)]
        })
        .collect();
    with_netfilter(|kernel| kernel.transact(&messages))
        .map_err(kernel("remove the rules for sandboxes"))
}

fn table_message(kind: u16, flags: u16, family: Family) -> Message {
    Message {
        kind,
        flags,
        family: family.number(),
        attributes: Attributes::new().text(TABLE_NAME, TABLE),
    }
}

/// Whether any of our tables is there, be it empty.
fn tables_exist() -> Result<bool, NetworkError> {
    let look = |kernel: &mut Netfilter| {
        for family in Family::ALL {
            match kernel.ask(&table_message(GET_TABLE, 0, family)) {
                Err(error) if is(&error, Errno::NOENT) => {}
                other => return other.map(|_| true),
            }
        }
        Ok(false)
    };
    with_netfilter(look).map_err(kernel("look for the nft tables `atoll`"))
}

/// Runs `nft` with `script` on its standard input and returns what it printed.
pub(super) fn run(
    what: &'static str,
    arguments: &[&str],
    script: &str,
) -> Result<String, NetworkError> {
    // Files in memory instead of pipes: neither side can block on the other.
    let input = memory_file(script).map_err(kernel("prepare the input of `nft`"))?;
    let output = memory_file("").map_err(kernel("prepare the output of `nft`"))?;
    let errors = memory_file("").map_err(kernel("prepare the output of `nft`"))?;
    let status = finish(arguments, &input, &output, &errors)?;
    if status.success() {
        return read_back(output).map_err(kernel("read what `nft` printed"));
    }
    let said = read_back(errors).map_err(kernel("read what `nft` printed"))?;
    let detail = match status.signal() {
        Some(libc::SIGALRM) => format!("it did not end within {RUN_BOUND_SECONDS} s"),
        _ if said.trim().is_empty() => status.to_string(),
        _ => said.trim().to_owned(),
    };
    Err(NetworkError::NftRefused { what, detail })
}

/// The one place that starts `nft`.
fn finish(
    arguments: &[&str],
    input: &File,
    output: &File,
    errors: &File,
) -> Result<ExitStatus, NetworkError> {
    for name in PROGRAMS {
        let mut command = Command::new(name);
        command.args(arguments).env("LC_ALL", "C");
        let streams =
            || io::Result::Ok((input.try_clone()?, output.try_clone()?, errors.try_clone()?));
        let (stdin, stdout, stderr) = streams().map_err(kernel("prepare the streams of `nft`"))?;
        command.stdin(stdin).stdout(stdout).stderr(stderr);
        // SAFETY: between fork and exec only `alarm` is called, which is
        // async-signal-safe. The alarm outlives the exec and bounds the run.
        unsafe {
            command.pre_exec(|| {
                libc::alarm(RUN_BOUND_SECONDS);
                Ok(())
            });
        }
        match program::status(&mut command) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return other.map_err(kernel("run `nft`")),
        }
    }
    Err(NetworkError::NftMissing)
}

fn memory_file(content: &str) -> io::Result<File> {
    let mut file = File::from(memfd_create("atoll-nft", MemfdFlags::CLOEXEC)?);
    file.write_all(content.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

fn read_back(mut file: File) -> io::Result<String> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

// Numbers of the kernel's interface (linux/netfilter/nf_tables.h).
pub(super) const SUBSYSTEM: u16 = 10 << 8;
const NEW_TABLE: u16 = SUBSYSTEM;
const GET_TABLE: u16 = SUBSYSTEM | 1;
const DELETE_TABLE: u16 = SUBSYSTEM | 2;
const NEW_RULE: u16 = SUBSYSTEM | 6;
const GET_RULE: u16 = SUBSYSTEM | 7;
const FLAG_CREATE: u16 = 0x400;
const FLAG_APPEND: u16 = 0x800;
const TABLE_NAME: u16 = 1;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
const LIST_ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const DATA_VALUE: u16 = 1;
const IMMEDIATE_REGISTER: u16 = 1;
const IMMEDIATE_DATA: u16 = 2;
const PAYLOAD_BASE: u16 = 2;
const PAYLOAD_OFFSET: u16 = 3;
const PAYLOAD_LENGTH: u16 = 4;
const PAYLOAD_SOURCE: u16 = 5;
const PAYLOAD_CHECKSUM: u16 = 6;
const PAYLOAD_CHECKSUM_OFFSET: u16 = 7;

const REGISTER: u32 = 1;
const BASE_TRANSPORT: u32 = 2;
const CHECKSUM_INTERNET: u32 = 1;
/// Where, counted from the ICMP header, the header of the packet it speaks of has its source.
const INNER_SOURCE_OFFSET: u32 = 8 + 12;
/// Where that header has its checksum.
const INNER_CHECKSUM_OFFSET: u32 = 8 + 10;

/// The rule that puts the sandbox's own address back into an ICMP error, where
/// the sandbox looks for the connection it speaks of: path MTU discovery lives
/// of that. With the checksum of that inner header, the ICMP checksum over both
/// stays right; that is what the words of `nft` cannot say.
fn inner_source_rule() -> Message {
    let expression = |name, data: &Attributes| {
        Attributes::new()
            .text(EXPRESSION_NAME, name)
            .nested(EXPRESSION_DATA, data)
    };
    let load = Attributes::new()
        .number(IMMEDIATE_REGISTER, REGISTER)
        .nested(
            IMMEDIATE_DATA,
            &Attributes::new().bytes(DATA_VALUE, &GUEST.octets()),
        );
    let store = Attributes::new()
        .number(PAYLOAD_SOURCE, REGISTER)
        .number(PAYLOAD_BASE, BASE_TRANSPORT)
        .number(PAYLOAD_OFFSET, INNER_SOURCE_OFFSET)
        .number(PAYLOAD_LENGTH, 4)
        .number(PAYLOAD_CHECKSUM, CHECKSUM_INTERNET)
        .number(PAYLOAD_CHECKSUM_OFFSET, INNER_CHECKSUM_OFFSET);
    let expressions = Attributes::new()
        .nested(LIST_ELEMENT, &expression("immediate", &load))
        .nested(LIST_ELEMENT, &expression("payload", &store));
    Message {
        kind: NEW_RULE,
        flags: FLAG_CREATE | FLAG_APPEND,
        family: Family::Inet.number(),
        attributes: Attributes::new()
            .text(RULE_TABLE, TABLE)
            .text(RULE_CHAIN, INNER_SOURCE)
            .nested(RULE_EXPRESSIONS, &expressions),
    }
}

/// How many rules our tables hold now; 0 when there are none.
///
/// Asked of the kernel directly: this runs at every create, and starting
/// `nft` would cost more than the rest of the network.
pub(super) fn rule_count() -> Result<usize, NetworkError> {
    let count = |kernel: &mut Netfilter| {
        let mut rules = 0;
        for family in Family::ALL {
            let request = Message {
                kind: GET_RULE,
                flags: 0,
                family: family.number(),
                attributes: Attributes::new().text(RULE_TABLE, TABLE),
            };
            rules += kernel.list(&request)?.len();
        }
        Ok(rules)
    };
    with_netfilter(count).map_err(kernel(
        "ask the kernel for the rules of the nft tables `atoll`",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_tables_are_ours() {
        assert!(is_our_table("inet", "atoll") && is_our_table("arp", "atoll"));
        assert!(!is_our_table("ip", "atoll") && !is_our_table("inet", "filter"));
    }
}
