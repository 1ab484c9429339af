//! The caller's side of `sudo`: it asks the guest and waits with the caller.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read as _, Write};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use super::options::{Asked, Keep, Wish, parse};
use super::terminal::{Relay, Relaying};
use super::{Answer, READY, Request, SOCKET};
use crate::process::reaper::Report;
use crate::process::spare::hand_over;

/// Variables that pass without being asked for: how to speak and whom to trust.
const PASSING: [&str; 13] = [
    "TERM",
    "COLORTERM",
    "LANG",
    "LANGUAGE",
    "TZ",
    "DISPLAY",
    "XAUTHORITY",
    "PS1",
    "PS2",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "LS_COLORS",
];
/// So do those that begin like this.
const PASSING_PREFIXES: [&str; 2] = ["LC_", "PIP_"];

/// Signals that are passed on to the command.
const PASSED_ON: [libc::c_int; 9] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGCONT,
    libc::SIGWINCH,
];

const USAGE: &str = "usage: sudo [-EHiknsSv] [-u user] [--preserve-env[=list]] [VAR=value] [command [argument ...]]";

/// Entry point of `sudo`.
pub(crate) fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<String> = arguments
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let wish = match parse(&arguments) {
        Ok(Asked::Run(wish)) => wish,
        Ok(Asked::Nothing) => return ExitCode::SUCCESS,
        Ok(Asked::List) => {
            println!("    (ALL : ALL) NOPASSWD: ALL");
            return ExitCode::SUCCESS;
        }
        Ok(Asked::Version) => {
            println!("Atoll sudo {}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        Ok(Asked::Help) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(what) => {
            eprintln!("sudo: {what}\n{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    match ask(wish) {
        Ok(Report::Exited { code }) => ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1)),
        Ok(Report::Signaled { signal }) => end_like(signal),
        Ok(Report::Taken | Report::Started { .. } | Report::Failed { .. }) => {
            eprintln!("sudo: the guest says nothing of the end of the command");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("sudo: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs what is wished and returns how it ended.
fn ask(wish: Wish) -> io::Result<Report> {
    let mut control = UnixStream::connect(SOCKET).map_err(|error| {
        io::Error::new(error.kind(), format!("cannot reach the guest: {error}"))
    })?;
    let mut ready = [0];
    control.read_exact(&mut ready)?;
    if ready != [READY] {
        return Err(io::Error::other("the guest says something strange"));
    }
    let relay = Relay::open()?;
    let streams = match &relay {
        Some(relay) => relay.streams()?,
        None => own_streams()?,
    };
    hand_over(&control, &streams)?;
    drop(streams);
    let mut line = serde_json::to_vec(&request(wish, relay.is_some())?)?;
    line.push(b'\n');
    control.write_all(&line)?;

    // Before any other thread, so that none of them gets a signal.
    let signals = hold_back_signals()?;
    let mut answers = BufReader::new(control.try_clone()?);
    next(&mut answers)?;
    let relaying = relay.map(Relay::start).transpose()?;
    let master = relaying.as_ref().map(Relaying::master);
    let master = master.transpose()?;
    std::thread::Builder::new().spawn(move || pass_on(&signals, &control, master.as_ref()))?;
    let end = next(&mut answers);
    if let Some(relaying) = relaying {
        relaying.finish();
    }
    end
}

fn own_streams() -> io::Result<[OwnedFd; 3]> {
    Ok([
        rustix::stdio::stdin().try_clone_to_owned()?,
        rustix::stdio::stdout().try_clone_to_owned()?,
        rustix::stdio::stderr().try_clone_to_owned()?,
    ])
}

fn request(wish: Wish, terminal: bool) -> io::Result<Request> {
    let passes = |name: &str| {
        PASSING.contains(&name)
            || PASSING_PREFIXES
                .iter()
                .any(|prefix| name.starts_with(prefix))
            || match &wish.keep {
                Keep::Usual => false,
                Keep::Also(names) => names.iter().any(|each| each == name),
                // Where programs are found is never the caller's choice.
                Keep::All => name != "PATH",
            }
    };
    let mut env: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| passes(name) && !(wish.set_home && name == "HOME"))
        .collect();
    env.extend(wish.variables);
    Ok(Request {
        keeps_home: env.iter().any(|(name, _)| name == "HOME"),
        env,
        user: wish.user,
        words: wish.words,
        mode: wish.mode,
        cwd: std::env::current_dir()?.to_string_lossy().into_owned(),
        terminal,
    })
}

/// The guest's next answer.
fn next(answers: &mut impl BufRead) -> io::Result<Report> {
    let mut line = String::new();
    if answers.read_line(&mut line)? == 0 {
        return Err(io::Error::other("the guest ended the conversation"));
    }
    match serde_json::from_str(&line)? {
        Answer::Command(report) => Ok(report),
        Answer::Refused(what) => Err(io::Error::other(what)),
    }
}

/// Keeps the signals that the command shall have from this process.
fn hold_back_signals() -> io::Result<libc::sigset_t> {
    // SAFETY: the set is made by `sigemptyset` before it is read, and only
    // this thread's mask changes, which later threads inherit.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in PASSED_ON {
            libc::sigaddset(&raw mut set, signal);
        }
        if libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(set)
    }
}

/// Passes signals on, for as long as the guest listens.
fn pass_on(signals: &libc::sigset_t, mut control: &UnixStream, master: Option<&OwnedFd>) {
    loop {
        let mut signal = 0;
        // SAFETY: both live through the call.
        if unsafe { libc::sigwait(signals, &raw mut signal) } != 0 {
            return;
        }
        if signal == libc::SIGWINCH
            && let Some(master) = master
        {
            // Its terminal gets the new size, and the command is told below.
            if let Ok(size) = rustix::termios::tcgetwinsize(rustix::stdio::stdin()) {
                let _ = rustix::termios::tcsetwinsize(master.as_fd(), size);
            }
        }
        let Ok(byte) = u8::try_from(signal) else {
            continue;
        };
        if control.write_all(&[byte]).is_err() {
            return;
        }
    }
}

/// Ends as the command did.
fn end_like(signal: i32) -> ExitCode {
    // SAFETY: the default action of a signal is restored, unblocked and sent
    // to this process, which has nothing left to do.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        libc::raise(signal);
    }
    ExitCode::from(u8::try_from(128 + signal).unwrap_or(1))
}
