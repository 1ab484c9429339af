//! What has to be installed, by the names of Debian's packages.

use std::path::Path;

use crate::backports;
use crate::failure::{Failure, Outcome};
use crate::program::{Program, find};
use crate::progress::step;

/// A package, and how to see that what it brings is there already, whoever brought it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Package {
    name: &'static str,
    sign: Sign,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    Program(&'static str),
    File(&'static str),
    PythonModule(&'static str),
}

const fn program(name: &'static str, program: &'static str) -> Package {
    Package {
        name,
        sign: Sign::Program(program),
    }
}

const fn file(name: &'static str, file: &'static str) -> Package {
    Package {
        name,
        sign: Sign::File(file),
    }
}

const fn python_module(name: &'static str, module: &'static str) -> Package {
    Package {
        name,
        sign: Sign::PythonModule(module),
    }
}

/// What building Atoll and running sandboxes takes.
pub(crate) const RUN: &[Package] = &[
    program("gcc", "cc"),
    file("libc6-dev", "/usr/include/stdlib.h"),
    program("e2fsprogs", "mkfs.ext4"),
    program("nftables", "nft"),
    program("mmdebstrap", "mmdebstrap"),
    file("ca-certificates", "/etc/ssl/certs/ca-certificates.crt"),
];

/// What the tests take besides.
pub(crate) const TEST: &[Package] = &[
    program("runc", "runc"),
    program("git", "git"),
    program("iproute2", "ip"),
    // Its own programs are in a directory of their version.
    program("postgresql", "pg_ctlcluster"),
];

/// What the clients of the protocol tests take besides.
pub(crate) const CLIENTS: &[Package] = &[
    program("python3", "python3"),
    python_module("python3-venv", "ensurepip"),
];

/// What the benchmarks take besides.
pub(crate) const BENCH: &[Package] = &[program("haproxy", "haproxy")];

/// What the machine with cgroup v2 takes besides.
pub(crate) const MACHINE: &[Package] = &[
    program("qemu-system-x86", "qemu-system-x86_64"),
    program("e2fsprogs", "mkfs.ext4"),
    program("mmdebstrap", "mmdebstrap"),
];

/// A Debian release whose own gVisor is too old, and whose backports have a newer one.
const BACKPORTED: &str = "bookworm";

/// Installs gVisor, if there is none.
pub(crate) fn install_gvisor() -> Outcome<()> {
    if is_there(Sign::Program("runsc")) {
        return Ok(());
    }
    match backports::codename() {
        Some(codename) if codename == BACKPORTED => backports::install("runsc", &codename),
        _ => apt_install(&["runsc"]),
    }
}

/// Installs those of the packages whose content is missing.
pub(crate) fn install(wanted: &[&[Package]]) -> Outcome<()> {
    let mut missing: Vec<&str> = Vec::new();
    for package in wanted.iter().copied().flatten() {
        if !is_there(package.sign) && !missing.contains(&package.name) {
            missing.push(package.name);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    apt_install(&missing)
}

fn apt_install(missing: &[&str]) -> Outcome<()> {
    let list = missing.join(" ");
    if find("apt-get").is_none() {
        return Err(Failure::new(format!(
            "these packages are missing, and there is no `apt-get` to install them: {list}"
        ))
        .hint("install what they are called on this system, then run the same command again"));
    }
    step(format_args!("installing {list}"));
    let apt = || {
        Program::root("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .arg("--quiet")
    };
    let installed = apt().arg("update").run().and_then(|()| {
        apt()
            .args(["install", "--yes", "--no-install-recommends"])
            .args(missing)
            .run()
    });
    installed.map_err(|failure| {
        failure.hint(format!(
            "run it by hand to see more: `sudo apt-get update && sudo apt-get install {list}`"
        ))
    })
}

fn is_there(sign: Sign) -> bool {
    match sign {
        Sign::Program(name) => find(name).is_some(),
        Sign::File(path) => Path::new(path).exists(),
        Sign::PythonModule(module) => Program::new("python3")
            .args(["-c", &format!("import {module}")])
            .succeeds(),
    }
}
