//! `atoll shell` on a real terminal.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod harness;

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use harness::command::Stream;
use harness::{BOUND, TestHome, eventually, second_home, tier};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

/// A terminal with a command on it, as a person would have it.
struct Terminal {
    screen: Stream,
    keyboard: File,
    /// Kept open, so that the terminal outlives the command.
    line: OwnedFd,
    child: Child,
    seen: usize,
}

impl Terminal {
    fn open(home: &TestHome, arguments: &[&str]) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let line = rustix::fs::open(name.as_c_str(), flags, Mode::empty()).unwrap();
        tcsetwinsize(&line, size(30, 100)).unwrap();
        let end = || Stdio::from(line.try_clone().unwrap());
        // `setsid --ctty` gives it a session whose terminal this is.
        let child = Command::new("setsid")
            .args(["--ctty", harness::binary().to_str().unwrap(), "shell"])
            .args(arguments)
            .current_dir(home.work())
            .env("ATOLL_HOME", home.path())
            .env("ATOLL_ISOLATION", tier().to_string())
            .env("TERM", "xterm")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let keyboard = File::from(master);
        Self {
            screen: Stream::read(keyboard.try_clone().unwrap()),
            keyboard,
            line,
            child,
            seen: 0,
        }
    }

    /// Waits for `text` after everything that was waited for before.
    fn wait_for(&mut self, text: &str) {
        let from = self.seen;
        let place = |bytes: &[u8]| {
            let fresh = String::from_utf8_lossy(bytes).get(from..)?.find(text)?;
            Some(from + fresh + text.len())
        };
        let all = self.screen.wait(*BOUND, |bytes| place(bytes).is_some());
        let all =
            all.unwrap_or_else(|()| panic!("no {text:?} on the screen: {:?}", self.screen.text()));
        self.seen = place(all.as_bytes()).unwrap();
    }

    fn type_text(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    fn exit_status(mut self) -> Option<i32> {
        eventually("the end of the shell", || self.child.try_wait().unwrap()).code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

#[test]
fn a_person_can_work_in_it() {
    let home = second_home();
    let mut terminal = Terminal::open(&home, &["--env", "GIVEN=yes"]);
    let before = tcgetattr(&terminal.line).unwrap();
    terminal.wait_for("$ ");

    // What is typed is never what is waited for.
    terminal.type_text("echo $((6*7)) $GIVEN $PWD $TERM; tty\r");
    terminal.wait_for("42 yes /home/user xterm\r\n/dev/pts/");
    assert_ne!(
        tcgetattr(&terminal.line).unwrap().local_modes,
        before.local_modes,
        "not raw"
    );
    terminal.type_text("stty size | tr ' ' x\r");
    terminal.wait_for("30x100");

    tcsetwinsize(&terminal.line, size(44, 133)).unwrap();
    terminal.type_text(
        "until [ \"$(stty size)\" = '44 133' ]; do read -t 0.05 _ <> <(:); done; echo re''sized\r",
    );
    terminal.wait_for("resized");

    // Ctrl-C ends the command and not the shell.
    terminal.type_text("bash -c 'echo slee''ping; exec sleep 1000'\r");
    terminal.wait_for("sleeping");
    terminal.type_text("\x03");
    terminal.wait_for("$ ");
    terminal.type_text("echo status-$?\r");
    terminal.wait_for("status-130");

    // Ctrl-Z and job control work, too.
    terminal.type_text("bash -c 'echo wai''ting; exec sleep 1000'\r");
    terminal.wait_for("waiting");
    terminal.type_text("\x1a");
    terminal.wait_for("Stopped");

    terminal.type_text("exit 7\r");
    terminal.wait_for("There are stopped jobs.");
    terminal.type_text("exit 7\r");
    let line = terminal.line.try_clone().unwrap();
    assert_eq!(terminal.exit_status(), Some(7));
    let after = tcgetattr(&line).unwrap();
    assert_eq!(
        (
            after.input_modes,
            after.output_modes,
            after.control_modes,
            after.local_modes
        ),
        (
            before.input_modes,
            before.output_modes,
            before.control_modes,
            before.local_modes
        ),
    );
    home.assert_nothing_left("after the shell");
}

#[test]
fn ctrl_d_ends_the_shell() {
    let home = second_home();
    let mut terminal = Terminal::open(&home, &[]);
    terminal.wait_for("$ ");
    terminal.type_text("\x04");
    assert_eq!(terminal.exit_status(), Some(0));
    home.assert_nothing_left("after Ctrl-D");
}

#[test]
fn a_signal_ends_it_and_restores_the_terminal() {
    let home = second_home();
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut terminal = Terminal::open(&home, &[]);
        let before = tcgetattr(&terminal.line).unwrap();
        terminal.wait_for("$ ");
        kill_process(Pid::from_child(&terminal.child), signal).unwrap();
        let line = terminal.line.try_clone().unwrap();
        assert_eq!(terminal.exit_status(), Some(code));
        assert_eq!(tcgetattr(&line).unwrap().local_modes, before.local_modes);
        home.assert_nothing_left("after a signal");
    }
}

#[test]
fn a_terminal_that_is_closed_ends_the_sandbox() {
    let home = second_home();
    let mut terminal = Terminal::open(&home, &[]);
    terminal.wait_for("$ ");
    let client = Pid::from_child(&terminal.child);
    kill_process(client, Signal::KILL).unwrap();
    drop(terminal);
    home.assert_nothing_left("after the terminal was closed");
}

#[test]
fn the_end_of_its_lifetime_is_told() {
    let home = second_home();
    let mut terminal = Terminal::open(&home, &["--timeout", "1s"]);
    terminal.wait_for("$ ");
    terminal.wait_for("error: the sandbox has ended: end of the lifetime of 1 s reached");
    assert_eq!(terminal.exit_status(), Some(125));
    home.assert_nothing_left("after its lifetime");
}

#[test]
fn without_a_terminal_it_is_refused() {
    let home = second_home();
    let finished = home.run(["shell"]);
    assert_eq!(finished.code, 125);
    assert_eq!(finished.stdout, "");
    assert_eq!(
        finished.stderr,
        "error: `atoll shell` needs a terminal on standard input\n\
         hint: for a script use `atoll run --lang bash -`\n"
    );
}
