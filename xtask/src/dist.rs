//! `cargo xtask dist`: the release binary that runs on any Linux of its architecture.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use crate::failure::{Context as _, Failure, Outcome};
use crate::packages;
use crate::program::Program;
use crate::progress::step;
use crate::workspace;

/// Builds it, proves that it needs nothing beside it, and writes its checksum.
pub(crate) fn dist() -> Outcome<ExitCode> {
    packages::install(&[packages::RUN])?;
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    step("building the static binary");
    Program::cargo()
        .args([
            "build",
            "--locked",
            "--package",
            "atoll",
            "--profile",
            "dist",
        ])
        // Named although it is the host's: the flags below are then not those of build scripts and macros.
        .args(["--target", &target])
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .run()?;

    let directory = workspace::target().join("dist");
    let built = workspace::target().join(&target).join("dist/atoll");
    fs::create_dir_all(&directory).context(|| format!("making `{}`", directory.display()))?;
    let binary = directory.join("atoll");
    fs::copy(&built, &binary).context(|| format!("copying `{}`", built.display()))?;

    step("checking that it is static and runs in an empty root");
    expect_static(&binary)?;
    let version = run_alone(&directory)?;
    let checksum = Program::new("sha256sum")
        .directory(&directory)
        .arg("atoll")
        .read()?;
    let sums = directory.join("atoll.sha256");
    fs::write(&sums, &checksum).context(|| format!("writing `{}`", sums.display()))?;

    let size = fs::metadata(&binary)
        .context(|| format!("reading `{}`", binary.display()))?
        .len();
    step(format_args!(
        "{}: {}, {:.1} MB",
        binary.display(),
        version.trim(),
        size as f64 / 1e6
    ));
    print!("{checksum}");
    Ok(ExitCode::SUCCESS)
}

fn expect_static(binary: &Path) -> Outcome<()> {
    let answer = Program::new("ldd")
        .arg(binary)
        .command()
        .output()
        .context(|| "starting `ldd`".to_owned())?;
    let text = [answer.stdout, answer.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    if text.contains("statically linked") || text.contains("not a dynamic executable") {
        return Ok(());
    }
    Err(Failure::new(format!(
        "`{}` is not static: {}",
        binary.display(),
        text.trim()
    ))
    .hint("a dependency links a shared library; `ldd` above names it"))
}

/// Runs it where there is no other file.
fn run_alone(directory: &Path) -> Outcome<String> {
    let root = directory.join("empty");
    fs::create_dir_all(&root).context(|| format!("making `{}`", root.display()))?;
    fs::copy(directory.join("atoll"), root.join("atoll"))
        .context(|| format!("copying to `{}`", root.display()))?;
    let version = Program::root("chroot")
        .arg(&root)
        .args(["/atoll", "--version"])
        .read();
    fs::remove_dir_all(&root).context(|| format!("removing `{}`", root.display()))?;
    version
}
