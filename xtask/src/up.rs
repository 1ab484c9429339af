//! `cargo xtask up`: from a fresh machine to a server on which E2B's own SDK
//! runs a program.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, Stdio};

use crate::arguments::UpChoice;
use crate::failure::{Context as _, Failure, Outcome};
use crate::packages;
use crate::program::{Program, is_root};
use crate::progress::step;
use crate::workspace;

/// How the server's first line begins when it is ready.
const READY: &str = "serving on ";

/// The quickest template to build that can draw.
const PLOT_TEMPLATE: &str = "code-interpreter-v1-tiny";

/// Does everything, and goes on serving.
pub(crate) fn up(choice: &UpChoice) -> Outcome<ExitCode> {
    packages::install(&[packages::RUN, packages::CLIENTS])?;
    // The container tier works without it, and `atoll doctor` says what is missing.
    if let Err(failure) = packages::install_gvisor() {
        eprintln!("{failure}");
        step("going on without gVisor");
    }

    step("building atoll (a few minutes the first time)");
    Program::cargo()
        .args(["build", "--release", "--locked", "--package", "atoll"])
        .run()
        .map_err(|failure| failure.hint("the compiler's messages above say why"))?;
    let atoll = Atoll {
        binary: workspace::target().join("release/atoll"),
        home: choice.home.clone(),
    };

    step("making the template `base` (a minute or two the first time)");
    atoll
        .command()
        .args(["template", "build", "base"])
        .run()
        .map_err(|failure| {
            failure.hint(
                "the lines above say which step failed; the same command goes on where it stopped",
            )
        })?;

    step("running examples/hello.py in a sandbox");
    atoll
        .command()
        .arg("run")
        .arg(workspace::example("hello.py"))
        .run()
        .context(|| "the example did not run".to_owned())
        .map_err(|failure| failure.hint(atoll.doctor()))?;

    step("making a template with kernels and matplotlib (a minute or two the first time)");
    atoll
        .command()
        .args(["template", "build", PLOT_TEMPLATE])
        .run()
        .map_err(|failure| {
            failure.hint(
                "the lines above say which step failed; the same command goes on where it stopped",
            )
        })?;

    let python = install_sdk()?;
    let server = Server::start(&atoll)?;
    step("running examples/quickstart.py with E2B's Python SDK");
    demonstrate(
        &atoll,
        Program::new(&python).arg(workspace::example("quickstart.py")),
    )?;
    step("drawing examples/sine.py with E2B's code interpreter SDK");
    let plot = workspace::target().join("sine.png");
    demonstrate(
        &atoll,
        Program::new(&python)
            .arg(workspace::example("sine.py"))
            .args(["--template", PLOT_TEMPLATE, "--output"])
            .arg(&plot),
    )?;
    step(format_args!("the plot is in {}", short(&plot)));
    if choice.once {
        return server.stop(&atoll);
    }

    let prefix = atoll.as_typed();
    step("serving until Ctrl-C; in another terminal, try");
    eprintln!(
        "    eval \"$({prefix} env)\" && {} examples/quickstart.py",
        short(&python)
    );
    eprintln!("    {prefix} run -c 'print(6*7)' --lang python");
    eprintln!("    {prefix} repl --template {PLOT_TEMPLATE}");
    eprintln!("    {prefix} shell \"$({prefix} create)\"");
    eprintln!("    {prefix} doctor");
    server.wait()
}

/// The binary, and the home it works on.
struct Atoll {
    binary: PathBuf,
    home: Option<PathBuf>,
}

impl Atoll {
    fn command(&self) -> Program {
        let program = Program::root(&self.binary).directory(workspace::root());
        match &self.home {
            Some(home) => program.arg("--home").arg(home),
            None => program,
        }
    }

    fn doctor(&self) -> String {
        format!("`{} doctor` says what this host lacks", self.as_typed())
    }

    /// How a person calls it from where they stand.
    fn as_typed(&self) -> String {
        let sudo = if is_root() { "" } else { "sudo " };
        let home = self.home.as_ref();
        let home = home.map(|home| format!(" --home {}", home.display()));
        format!("{sudo}{}{}", short(&self.binary), home.unwrap_or_default())
    }
}

/// A path as a person would type it here.
fn short(path: &Path) -> String {
    let here = std::env::current_dir().ok();
    here.as_deref()
        .and_then(|here| path.strip_prefix(here).ok())
        .unwrap_or(path)
        .display()
        .to_string()
}

/// Installs E2B's SDK where only the examples find it, and says which Python has it.
fn install_sdk() -> Outcome<PathBuf> {
    let directory = workspace::target().join("examples-python");
    let python = directory.join("bin/python");
    let wanted = workspace::example("requirements.txt");
    let installed = Program::new(&python)
        .args(["-c", "import e2b, e2b_code_interpreter"])
        .succeeds();
    if !installed {
        step("installing E2B's Python SDKs");
        Program::new("python3")
            .args(["-m", "venv"])
            .arg(&directory)
            .run()?;
    }
    Program::new(&python)
        .args(["-m", "pip", "--disable-pip-version-check", "--quiet"])
        .args(["install", "--requirement"])
        .arg(wanted)
        .run()?;
    Ok(python)
}

/// Runs an example with the variables that the server's own user would set.
fn demonstrate(atoll: &Atoll, program: Program) -> Outcome<()> {
    let variables = atoll.command().arg("env").read()?;
    variables
        .lines()
        .filter_map(|line| line.strip_prefix("export ")?.split_once('='))
        .fold(program, |program, (name, value)| program.env(name, value))
        .run()
        .map_err(|failure| failure.hint(atoll.doctor()))
}

/// The server of the home: one that was started here, or one that runs already.
enum Server {
    Started(Child),
    Found,
}

impl Server {
    fn start(atoll: &Atoll) -> Outcome<Self> {
        if atoll.command().arg("env").succeeds() && atoll.command().arg("ps").succeeds() {
            step("a server runs already: using that one");
            return Ok(Self::Found);
        }
        step("starting the server");
        let mut command = atoll.command().arg("serve").command();
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .context(|| "cannot start the server".to_owned())?;
        let Some(output) = child.stdout.take() else {
            return Err(Failure::new("the server has no output"));
        };
        let mut lines = BufReader::new(output).lines();
        let ready = lines
            .by_ref()
            .map_while(Result::ok)
            .inspect(|line| eprintln!("    {line}"))
            .any(|line| line.starts_with(READY));
        if !ready {
            let status = child
                .wait()
                .context(|| "waiting for the server".to_owned())?;
            return Err(
                Failure::new(format!("the server ended with {status}")).hint(atoll.doctor())
            );
        }
        // The rest is for whoever watches: the key is shown this once.
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                eprintln!("    {line}");
            }
        });
        Ok(Self::Started(child))
    }

    /// Ends a server that was started here.
    fn stop(self, atoll: &Atoll) -> Outcome<ExitCode> {
        match self {
            Self::Found => Ok(ExitCode::SUCCESS),
            Self::Started(_) => {
                atoll.command().args(["stop", "--kill"]).run()?;
                self.wait()
            }
        }
    }

    /// Waits until it ends.
    fn wait(self) -> Outcome<ExitCode> {
        let Self::Started(mut child) = self else {
            return Ok(ExitCode::SUCCESS);
        };
        let status = child
            .wait()
            .context(|| "waiting for the server".to_owned())?;
        if status.success() {
            return Ok(ExitCode::SUCCESS);
        }
        Err(Failure::new(format!("the server ended with {status}")))
    }
}
