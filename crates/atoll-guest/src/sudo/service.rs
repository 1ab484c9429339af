//! The guest's side of `sudo`: runs commands as somebody else for those who may.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{sleep, timeout};

use super::{Answer, Mode, READY, REQUEST_BYTES_MAX, Request, SOCKET};
use crate::boot::connections::{Crowd, Place};
use crate::process::Commands;
use crate::process::launch::{Behind, LaunchError, start};
use crate::process::reaper::{Order, Report};
use crate::process::tree;
use crate::users::{User, Users};

/// Who may become anybody, besides root.
const USER: u32 = 1000;

/// Where commands of `sudo` are looked for, whatever the caller thinks.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const SHELL: &str = "/bin/bash";

/// How long a caller may take to say what it wants.
const ASK_BOUND: Duration = Duration::from_secs(10);
/// Callers of whom nobody knows yet who they are; each holds descriptors of PID 1.
const STRANGERS_MAX: usize = 32;
/// Pause after the kernel could not hand over a caller.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Listens where callers look.
pub(crate) fn bind() -> io::Result<UnixListener> {
    let _ = std::fs::remove_file(SOCKET);
    let listener = UnixListener::bind(SOCKET)?;
    std::fs::set_permissions(SOCKET, Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// Serves callers, for ever.
pub(crate) async fn serve(listener: UnixListener, commands: Commands) {
    let strangers = Arc::new(Crowd::new(STRANGERS_MAX));
    loop {
        match listener.accept().await {
            Ok((caller, _)) => {
                let (commands, place) = (commands.clone(), strangers.enter());
                tokio::spawn(async move {
                    // A caller that went away needs no answer.
                    let _ = receive_caller(caller, place, &commands).await;
                });
                // Who came has its turn before it can be the oldest.
                tokio::task::yield_now().await;
            }
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Hears who calls; one that takes its time makes room for the next.
async fn receive_caller(caller: UnixStream, place: Place, commands: &Commands) -> io::Result<()> {
    let (uid, streams) = tokio::select! {
        heard = introduction(&caller) => heard?,
        () = place.turned_away() => return Ok(()),
    };
    let (reading, mut writing) = caller.into_split();
    if !may_ask(uid) {
        let what = format!(
            "{} is not in the sudoers file.",
            Users::load().names().user(uid)
        );
        return say(&mut writing, &Answer::Refused(what)).await;
    }
    drop(place);
    converse(uid, streams, reading, writing, commands).await
}

async fn introduction(caller: &UnixStream) -> io::Result<(u32, [OwnedFd; 3])> {
    // gVisor answers the question who is at the other end with ourselves; but
    // with each message it can tell who sent it.
    rustix::net::sockopt::set_socket_passcred(caller, true)?;
    caller.writable().await?;
    caller.try_write(&[READY])?;
    timeout(ASK_BOUND, opening(caller)).await.map_err(late)?
}

fn late(_: tokio::time::error::Elapsed) -> io::Error {
    io::ErrorKind::TimedOut.into()
}

fn may_ask(uid: u32) -> bool {
    uid == 0 || uid == USER
}

async fn converse(
    uid: u32,
    streams: [OwnedFd; 3],
    reading: OwnedReadHalf,
    mut writing: OwnedWriteHalf,
    commands: &Commands,
) -> io::Result<()> {
    let mut reading = BufReader::new(reading);
    let request = timeout(ASK_BOUND, request_of(&mut reading))
        .await
        .map_err(late)??;
    let started = match order(uid, request) {
        Ok(order) => start(&order, streams, commands.spare())
            .await
            .map_err(|error| reason(&order, &error)),
        Err(what) => Err(what),
    };
    match started {
        Ok(behind) => watch(behind, reading, writing).await,
        Err(what) => say(&mut writing, &Answer::Refused(what)).await,
    }
}

/// Who calls, and the three streams.
async fn opening(caller: &UnixStream) -> io::Result<(u32, [OwnedFd; 3])> {
    loop {
        caller.readable().await?;
        match caller.try_io(tokio::io::Interest::READABLE, || receive(caller)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return other,
        }
    }
}

fn receive(caller: &UnixStream) -> io::Result<(u32, [OwnedFd; 3])> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3), ScmCredentials(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut carrier = [0];
    rustix::net::recvmsg(
        caller,
        &mut [io::IoSliceMut::new(&mut carrier)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let (mut uid, mut streams) = (None, Vec::new());
    for message in ancillary.drain() {
        match message {
            RecvAncillaryMessage::ScmCredentials(sender) => uid = Some(sender.uid.as_raw()),
            RecvAncillaryMessage::ScmRights(descriptors) => streams.extend(descriptors),
            _ => {}
        }
    }
    let incomplete = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let streams = <[OwnedFd; 3]>::try_from(streams).map_err(|_| incomplete())?;
    Ok((uid.ok_or_else(incomplete)?, streams))
}

async fn request_of(reading: &mut BufReader<OwnedReadHalf>) -> io::Result<Request> {
    let mut line = Vec::new();
    reading
        .take(REQUEST_BYTES_MAX)
        .read_until(b'\n', &mut line)
        .await?;
    Ok(serde_json::from_slice(&line)?)
}

/// What to run for the caller `uid`, or why not.
fn order(uid: u32, request: Request) -> Result<Order, String> {
    let users = Users::load();
    let names = users.names();
    let caller = names.user(uid);
    let name = match request.user.strip_prefix('#').map(str::parse) {
        Some(Ok(uid)) => names.user(uid),
        _ => request.user.clone(),
    };
    let target = users
        .find(&name)
        .map_err(|_| format!("unknown user {}", request.user))?;
    let (cmd, args) = command(&request);
    let cwd = match request.mode {
        Mode::Login => target.home.clone(),
        Mode::Program | Mode::Shell => request.cwd.clone(),
    };
    let env = environment(
        uid,
        &caller,
        &target,
        &cmd,
        &args,
        request.env,
        request.keeps_home,
    );
    Ok(Order {
        cmd,
        args,
        env: env.into_iter().collect(),
        cwd,
        uid: target.uid,
        gid: target.gid,
        groups: target.groups,
        terminal: request.terminal,
    })
}

/// Program and arguments.
fn command(request: &Request) -> (String, Vec<String>) {
    let login = (request.mode == Mode::Login).then(|| "--login".to_owned());
    match (request.mode, request.words.split_first()) {
        (Mode::Program, Some((cmd, args))) => (cmd.clone(), args.to_vec()),
        (_, None) => (SHELL.to_owned(), login.into_iter().collect()),
        // A shell reads its words again; quoted, they stay what they were.
        (Mode::Shell | Mode::Login, Some(_)) => {
            let line: Vec<String> = request.words.iter().map(|word| quoted(word)).collect();
            let words = login.into_iter().chain(["-c".to_owned(), line.join(" ")]);
            (SHELL.to_owned(), words.collect())
        }
    }
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn environment(
    uid: u32,
    caller: &str,
    target: &User,
    cmd: &str,
    args: &[String],
    asked: Vec<(String, String)>,
    keeps_home: bool,
) -> BTreeMap<String, String> {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let words: Vec<&str> = std::iter::once(cmd)
        .chain(args.iter().map(String::as_str))
        .collect();
    let mut env = BTreeMap::from([
        pair("PATH", PATH),
        pair("SHELL", SHELL),
        pair("USER", &target.name),
        pair("LOGNAME", &target.name),
        pair("SUDO_USER", caller),
        pair("SUDO_UID", &uid.to_string()),
        pair("SUDO_GID", &uid.to_string()),
        pair("SUDO_COMMAND", &words.join(" ")),
    ]);
    if !keeps_home {
        env.extend([pair("HOME", &target.home)]);
    }
    env.extend(asked);
    env
}

fn reason(order: &Order, error: &LaunchError) -> String {
    match error {
        LaunchError::Refused { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            format!("{}: command not found", order.cmd)
        }
        LaunchError::Refused { source, .. } => format!("{}: {source}", order.cmd),
        other => other.to_string(),
    }
}

/// Tells the caller of the command's end and the command of the caller's signals.
async fn watch(
    mut behind: Behind,
    mut reading: BufReader<OwnedReadHalf>,
    mut writing: OwnedWriteHalf,
) -> io::Result<()> {
    let pid = behind.pid;
    say(&mut writing, &Answer::Command(Report::Started { pid })).await?;
    loop {
        tokio::select! {
            report = behind.reports.next() => {
                let killed = Report::Signaled { signal: libc::SIGKILL };
                return say(&mut writing, &Answer::Command(report.unwrap_or(killed))).await;
            }
            signal = reading.read_u8() => {
                let Ok(signal) = signal else {
                    // The caller is gone; what it started goes too.
                    tree::kill_command(behind.reaper, pid).await;
                    return Ok(());
                };
                if let (Some(group), Some(signal)) =
                    (Pid::from_raw(pid), Signal::from_named_raw(i32::from(signal)))
                {
                    let _ = kill_process_group(group, signal);
                }
            }
        }
    }
}

async fn say(writing: &mut OwnedWriteHalf, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    writing.write_all(&line).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(user: &str, mode: Mode, words: &[&str]) -> Request {
        Request {
            user: user.to_owned(),
            words: words.iter().map(|&word| word.to_owned()).collect(),
            mode,
            env: vec![("A".to_owned(), "1".to_owned())],
            keeps_home: false,
            cwd: "/srv".to_owned(),
            terminal: false,
        }
    }

    #[test]
    fn only_root_and_the_user_may_ask() {
        assert!(may_ask(0) && may_ask(USER));
        for uid in [1, 33, 999, 1001, 65534] {
            assert!(!may_ask(uid), "{uid}");
        }
        let unknown = order(0, request("nobody-of-that-name", Mode::Program, &["id"]));
        assert_eq!(unknown.unwrap_err(), "unknown user nobody-of-that-name");
    }

    #[test]
    fn shells_get_words_as_they_were() {
        let (cmd, args) = command(&request(
            "root",
            Mode::Login,
            &["echo", "it's  two", "$HOME"],
        ));
        assert_eq!(
            (cmd.as_str(), args.join("|").as_str()),
            ("/bin/bash", r"--login|-c|'echo' 'it'\''s  two' '$HOME'")
        );
        let (cmd, args) = command(&request("root", Mode::Shell, &[]));
        assert_eq!((cmd.as_str(), args.len()), ("/bin/bash", 0));
    }

    #[test]
    fn programs_are_looked_for_where_root_looks() {
        let order = order(USER, request("root", Mode::Program, &["id"])).unwrap();
        let env: BTreeMap<_, _> = order.env.into_iter().collect();
        let value = |name: &str| env.get(name).map(String::as_str);
        assert_eq!(
            (value("PATH"), value("SUDO_UID"), value("A"), value("USER")),
            (Some(PATH), Some("1000"), Some("1"), Some("root"))
        );
        assert_eq!(order.cwd, "/srv");
    }
}
