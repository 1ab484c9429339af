//! `atoll shell` on a real terminal.

use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::{tcgetattr, tcsetwinsize};

use crate::harness::second_home;
use crate::harness::terminal::{Terminal, size};

#[test]
fn a_person_can_work_in_it() {
    let home = second_home();
    let mut terminal = Terminal::open(&home, &["shell", "--env", "GIVEN=yes"]);
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
    let mut terminal = Terminal::open(&home, &["shell"]);
    terminal.wait_for("$ ");
    terminal.type_text("\x04");
    assert_eq!(terminal.exit_status(), Some(0));
    home.assert_nothing_left("after Ctrl-D");
}

#[test]
fn a_signal_ends_it_and_restores_the_terminal() {
    let home = second_home();
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut terminal = Terminal::open(&home, &["shell"]);
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
    let mut terminal = Terminal::open(&home, &["shell"]);
    terminal.wait_for("$ ");
    let client = Pid::from_child(&terminal.child);
    kill_process(client, Signal::KILL).unwrap();
    drop(terminal);
    home.assert_nothing_left("after the terminal was closed");
}

#[test]
fn the_end_of_its_lifetime_is_told() {
    let home = second_home();
    let mut terminal = Terminal::open(&home, &["shell", "--timeout", "1s"]);
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
