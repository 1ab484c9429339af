//! The `nft` program, and a quick question to the kernel that needs no program.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use rtnetlink::sys::protocols::NETLINK_NETFILTER;
use rtnetlink::sys::{Socket, SocketAddr};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::error::{NetworkError, kernel};
use crate::host::program;

/// Our table, for all sandboxes of all homes of this host.
pub(super) const TABLE: &str = "atoll";
const FAMILY: &str = "inet";

/// How long one run of `nft` may take; it waits for other changes of the ruleset.
const RUN_BOUND_SECONDS: u32 = 10;
/// How long the kernel may take to list our rules.
const LIST_BOUND: Duration = Duration::from_secs(5);
/// Where distributions put it; the monitor's `PATH` may lack `sbin`.
const PROGRAMS: [&str; 3] = ["/usr/sbin/nft", "/sbin/nft", "nft"];

/// Whether a table that `nft` lists is the one we made.
pub(super) fn is_our_table(family: &str, table: &str) -> bool {
    family == FAMILY && table == TABLE
}

/// Puts `ruleset` in place of whatever our table held, in one step.
pub(super) fn replace_table(ruleset: &str) -> Result<(), NetworkError> {
    // The first line makes sure there is something to delete.
    let script = format!("table {FAMILY} {TABLE}\ndelete table {FAMILY} {TABLE}\n{ruleset}");
    run("load the rules for sandboxes", &["--file", "-"], &script).map(drop)
}

/// Removes our table; one that is not there is removed already.
pub(super) fn remove_table() -> Result<(), NetworkError> {
    let script = format!("table {FAMILY} {TABLE}\ndelete table {FAMILY} {TABLE}\n");
    run("remove the rules for sandboxes", &["--file", "-"], &script).map(drop)
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

// Numbers of the kernel's interface (linux/netfilter/nfnetlink.h, nf_tables.h).
const SUBSYSTEM_NFTABLES: u16 = 10;
const NEW_RULE: u16 = SUBSYSTEM_NFTABLES << 8 | 6;
const GET_RULE: u16 = SUBSYSTEM_NFTABLES << 8 | 7;
const PROTOCOL_INET: u8 = 1;
const ATTRIBUTE_RULE_TABLE: u16 = 1;
const REQUEST_DUMP: u16 = 0x1 | 0x300;
const MESSAGE_ERROR: u16 = 2;
const MESSAGE_DONE: u16 = 3;

/// How many rules our table holds now; 0 when there is no table.
///
/// Asked of the kernel directly: this runs at every create, and starting
/// `nft` would cost more than the rest of the network.
pub(super) fn rule_count() -> Result<usize, NetworkError> {
    count_rules().map_err(kernel(
        "ask the kernel for the rules of the nft table `inet atoll`",
    ))
}

fn count_rules() -> io::Result<usize> {
    let socket = Socket::new(NETLINK_NETFILTER)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(LIST_BOUND))?;
    socket.send_to(&list_request(), &SocketAddr::new(0, 0), 0)?;
    let mut rules = 0;
    let mut datagram = Vec::with_capacity(64 * 1024);
    loop {
        datagram.clear();
        match socket.recv_from(&mut datagram, 0) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        match tally(&datagram, &mut rules)? {
            Listing::Continues => {}
            Listing::Ended => return Ok(rules),
        }
    }
}

/// `nlmsghdr`, `nfgenmsg` and the name of our table.
fn list_request() -> Vec<u8> {
    let name = [TABLE.as_bytes(), b"\0"].concat();
    let attribute_length = 4 + name.len();
    let mut body = vec![PROTOCOL_INET, 0, 0, 0];
    // The name is a constant of a few bytes.
    body.extend(
        u16::try_from(attribute_length)
            .unwrap_or_default()
            .to_ne_bytes(),
    );
    body.extend(ATTRIBUTE_RULE_TABLE.to_ne_bytes());
    body.extend(&name);
    body.resize(body.len().next_multiple_of(4), 0);
    let mut request = Vec::new();
    request.extend(
        u32::try_from(16 + body.len())
            .unwrap_or_default()
            .to_ne_bytes(),
    );
    request.extend(GET_RULE.to_ne_bytes());
    request.extend(REQUEST_DUMP.to_ne_bytes());
    request.extend([0; 8]);
    request.extend(&body);
    request
}

#[derive(Debug, PartialEq, Eq)]
enum Listing {
    Continues,
    Ended,
}

/// Counts the rules in one datagram of the kernel's answer.
fn tally(datagram: &[u8], rules: &mut usize) -> io::Result<Listing> {
    let mut rest = datagram;
    while let Some((header, _)) = rest.split_first_chunk::<16>() {
        let [a, b, c, d, kind_low, kind_high, ..] = *header;
        match u16::from_ne_bytes([kind_low, kind_high]) {
            MESSAGE_DONE => return Ok(Listing::Ended),
            MESSAGE_ERROR => {
                let code = rest
                    .get(16..20)
                    .and_then(|bytes| bytes.try_into().ok())
                    .map(i32::from_ne_bytes);
                return Err(io::Error::from_raw_os_error(
                    code.unwrap_or_default().saturating_neg(),
                ));
            }
            NEW_RULE => *rules += 1,
            _ => {}
        }
        let length = usize::try_from(u32::from_ne_bytes([a, b, c, d])).map_err(io::Error::other)?;
        if length < header.len() {
            return Err(io::Error::other(
                "a netlink message shorter than its header",
            ));
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(Listing::Continues)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(u32::try_from(16 + body.len()).unwrap().to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn rules_are_counted_until_the_kernel_is_done() {
        let mut rules = 0;
        let part = [
            message(NEW_RULE, &[1; 9]),
            message(99, &[]),
            message(NEW_RULE, &[1; 4]),
        ]
        .concat();
        assert_eq!(tally(&part, &mut rules).unwrap(), Listing::Continues);
        assert_eq!(
            tally(&message(MESSAGE_DONE, &[0; 4]), &mut rules).unwrap(),
            Listing::Ended
        );
        assert_eq!(rules, 2);
    }

    #[test]
    fn a_refusal_of_the_kernel_is_its_error() {
        let refusal = message(MESSAGE_ERROR, &(-1_i32).to_ne_bytes());
        let error = tally(&refusal, &mut 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn the_request_is_whole_and_names_the_table() {
        let request = list_request();
        assert_eq!(request.len() % 4, 0);
        assert_eq!(
            request[..4],
            u32::try_from(request.len()).unwrap().to_ne_bytes()
        );
        assert_eq!(&request[24..30], b"atoll\0");
    }

    proptest::proptest! {
        #[test]
        fn garbage_never_loops_or_panics(datagram: Vec<u8>) {
            let _ = tally(&datagram, &mut 0);
        }
    }
}
