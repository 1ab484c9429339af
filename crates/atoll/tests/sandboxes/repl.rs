//! `atoll repl`, by a person at a terminal and by a program that sends lines.

use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::tcgetattr;

use crate::harness::terminal::Terminal;
use crate::harness::{Finished, eventually, second_home};

const TEMPLATE: &str = "code-interpreter-v1-tiny";

#[test]
fn a_person_can_work_with_it() {
    let home = second_home();
    let mut terminal = Terminal::open(&home, &["repl", "--template", TEMPLATE]);
    let before = tcgetattr(&terminal.line).unwrap();
    terminal.wait_for("python in a fresh sandbox");
    terminal.wait_for(">>> ");
    // What is typed is never what is waited for.
    terminal.type_text("a = 6\r");
    terminal.wait_for(">>> ");
    terminal.type_text("a * 7\r");
    terminal.wait_for("\r\n42\r\n");
    terminal.wait_for(">>> ");

    // A block ends with an empty line.
    terminal.type_text("for i in range(2):\rprint('line', i + 100)\r\r");
    terminal.wait_for("IndentationError");
    terminal.wait_for(">>> ");
    terminal.type_text("for i in range(2):\r  print('line', i + 100)\r\r");
    terminal.wait_for("line 100\r\nline 101\r\n");
    terminal.wait_for(">>> ");

    // The cell before, by its history.
    terminal.type_text("\u{10}");
    terminal.wait_for("print(");
    terminal.type_text("\r");
    terminal.wait_for("line 101\r\n");
    terminal.wait_for(">>> ");

    // Ctrl-C ends the cell and keeps the state.
    terminal.type_text("exec(\"print('be' + 'gun', flush=True)\\nwhile True: pass\")\r");
    terminal.wait_for("begun");
    terminal.type_text("\u{3}");
    terminal.wait_for("interrupted; what was defined is still there");
    terminal.wait_for(">>> ");
    terminal.type_text("a + 1000\r");
    terminal.wait_for("\r\n1006\r\n");
    terminal.wait_for(">>> ");

    // At the prompt it clears the line.
    terminal.type_text("1/0\u{3}");
    terminal.wait_for(">>> ");
    terminal.type_text("1/0\r");
    terminal.wait_for("ZeroDivisionError: division by zero");
    terminal.wait_for(">>> ");

    terminal.type_text("import matplotlib.pyplot as plt\r");
    terminal.wait_for(">>> ");
    terminal.type_text("plt.plot([1, 2]); plt.show()\r");
    terminal.wait_for("saved chart-1.png (");
    terminal.wait_for(">>> ");
    assert!(home.work().join("chart-1.png").exists());

    terminal.type_text(":restart\r");
    terminal.wait_for("a new kernel");
    terminal.wait_for(">>> ");
    terminal.type_text("a\r");
    terminal.wait_for("NameError");
    terminal.wait_for(">>> ");

    terminal.type_text("\u{4}");
    let after = eventually("the terminal as it was", || {
        let after = tcgetattr(&terminal.line).unwrap();
        (after.local_modes == before.local_modes).then_some(after)
    });
    assert_eq!(after.input_modes, before.input_modes);
    assert_eq!(terminal.exit_status(), Some(0));
    assert_eq!(home.leases().len(), 0);

    // The next one remembers.
    let mut terminal = Terminal::open(&home, &["repl", "--template", TEMPLATE]);
    terminal.wait_for(">>> ");
    terminal.type_text("\u{10}\u{10}\u{10}");
    terminal.wait_for("plt.plot(");
    terminal.type_text("\u{3}");
    terminal.wait_for(">>> ");
    terminal.type_text("quit()\r");
    assert_eq!(terminal.exit_status(), Some(0));
}

#[test]
fn a_signal_at_the_prompt_removes_the_sandbox_and_restores_the_terminal() {
    let home = second_home();
    let mut terminal = Terminal::open(&home, &["repl", "--template", TEMPLATE]);
    let before = tcgetattr(&terminal.line).unwrap();
    terminal.wait_for(">>> ");
    eventually("the editor", || {
        let now = tcgetattr(&terminal.line).unwrap();
        (now.local_modes != before.local_modes).then_some(())
    });
    let pid = Pid::from_raw(i32::try_from(terminal.child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    eventually("the end", || terminal.child.try_wait().unwrap());
    let after = tcgetattr(&terminal.line).unwrap();
    assert_eq!(after.local_modes, before.local_modes);
    assert_eq!(terminal.exit_status(), Some(143));
    assert_eq!(home.leases().len(), 0);
}

fn piped(words: &[&str], input: &str) -> Finished {
    let home = second_home();
    let mut all = vec!["repl", "--template", TEMPLATE];
    all.extend(words);
    home.atoll(all).stdin(input).finish()
}

#[test]
fn without_a_terminal_it_runs_what_it_is_sent() {
    let program = "a = 6\n\ndef f(x):\n    y = x * 7\n\n    return y\n\nf(a)\nprint('out')\nif a:\n    print('last')";
    assert_eq!(piped(&[], program), Finished::printed("42\nout\nlast\n"));
    assert_eq!(piped(&[], ""), Finished::printed(""));
    let failed = piped(&[], "1/0\nprint('on')\n");
    assert_eq!(
        (failed.code, failed.stdout.as_str()),
        (1, "on\n"),
        "{failed:#?}"
    );
    assert!(failed.stderr.contains("ZeroDivisionError"), "{failed:#?}");
    assert_eq!(
        piped(
            &["--lang", "js"],
            "const f = () => {\n  return 6\n}\nf() * 7\n"
        ),
        Finished::printed("42\n")
    );
    assert_eq!(
        piped(
            &["--lang", "bash"],
            "a=6\nfor i in 1 2\ndo\necho $((a * i))\ndone\n"
        ),
        Finished::printed("6\n12\n")
    );
    let unknown = piped(&["--lang", "cobol"], "DISPLAY 1\n");
    assert_eq!(unknown.code, 125, "{unknown:#?}");
    assert!(
        unknown.stderr.contains("cannot run cobol code here"),
        "{unknown:#?}"
    );
    let binary = piped(&[], "\u{0}\n");
    assert_ne!(binary.code, 125, "{binary:#?}");
}

#[test]
fn an_interrupt_without_a_terminal_ends_the_cell_and_goes_on() {
    let home = second_home();
    let mut running = home.atoll(["repl", "--template", TEMPLATE]).start();
    running.write("a = 6\nexec(\"print('begun', flush=True)\\nwhile True: pass\")\n");
    running.wait_for("begun");
    running.signal_group(Signal::INT);
    running.write("a * 7\n");
    running.wait_for("42");
    let finished = running.finish();
    assert_eq!(finished.code, 1, "{finished:#?}");
    assert!(
        finished
            .stderr
            .contains("interrupted; what was defined is still there"),
        "{finished:#?}"
    );
}
