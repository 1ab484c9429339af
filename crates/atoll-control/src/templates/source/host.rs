//! A copy of an allow-listed part of the host's packages: the way without a network.
//!
//! Files come from the lists of `dpkg`, for a fixed set of packages and what
//! they depend on. Nothing outside those lists is taken: not `/usr/local`,
//! not what somebody added, and of `/etc` only what is named here. It is a
//! copy with a digest, never a view of the host.

mod copy;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::SystemTime;

use atoll_store::{Digest, LayerInfo, Layers, no_progress};
use serde::Serialize;

use copy::{Copy, forget_times};

use super::packages::{closure, parse_packages};
use super::{SourceError, SourceEvent, trust};

/// What a sandbox should find, as far as the host has it.
const PACKAGES: [&str; 24] = [
    "bash",
    "ca-certificates",
    "coreutils",
    "curl",
    "dash",
    "findutils",
    "git",
    "grep",
    "gzip",
    "iproute2",
    "less",
    "nano",
    "nodejs",
    "openssh-client",
    "passwd",
    "procps",
    "python3",
    "python3-pip",
    "python3-venv",
    "sed",
    "sudo",
    "tar",
    "unzip",
    "xz-utils",
];
/// Parts of `/etc` that hold settings of programs and no secrets.
const ETC: [&str; 32] = [
    "alternatives",
    "bash.bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "debian_version",
    "default",
    "gai.conf",
    "host.conf",
    "inputrc",
    "issue",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "login.defs",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "pam.conf",
    "pam.d",
    "perl",
    "profile",
    "profile.d",
    "protocols",
    "python3",
    "python3.11",
    "security",
    "services",
    "shells",
    "skel",
    "ssl/openssl.cnf",
    "terminfo",
    "wgetrc",
];
/// Documentation and caches that a sandbox does without.
const LEFT_OUT: [&str; 7] = [
    "/usr/share/doc",
    "/usr/share/man",
    "/usr/share/info",
    "/usr/share/locale",
    "/usr/share/lintian",
    "/usr/local",
    "/boot",
];
const DPKG: &str = "/var/lib/dpkg";

/// What the host would give, and the key of the build cache.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Plan {
    source: &'static str,
    /// Packages with their versions.
    packages: BTreeMap<String, String>,
    /// Packages that were wanted and are not installed.
    missing: Vec<String>,
    certificates: Digest,
}

impl Plan {
    /// Looks at the host.
    pub(crate) fn new() -> Result<Self, SourceError> {
        if !Path::new(DPKG).join("info").is_dir() {
            return Err(SourceError::Host {
                what: "this host has no dpkg database to copy packages from".to_owned(),
                hint: "build the template on a Debian or Ubuntu host and copy its `layers`, `blobs` and `templates` here"
                    .to_owned(),
            });
        }
        let format = "${Package}\\t${Version}\\t${Essential}\\t${db:Status-Abbrev}\\t${Pre-Depends}, ${Depends}\\t${Provides}\\n";
        let output = Command::new("dpkg-query")
            .args(["-W", "-f", format])
            .stdin(Stdio::null())
            .output()
            .map_err(|source| SourceError::Program {
                program: "dpkg-query",
                source,
            })?;
        let installed = parse_packages(&String::from_utf8_lossy(&output.stdout));
        let (chosen, missing) = closure(&installed, &PACKAGES);
        let version = |name: &String| {
            installed
                .get(name)
                .map(|package| package.version.clone())
                .unwrap_or_default()
        };
        let packages = chosen
            .iter()
            .map(|name| (name.clone(), version(name)))
            .collect();
        Ok(Self {
            source: "host",
            packages,
            missing,
            certificates: trust::digest(&trust::added_certificates()),
        })
    }

    /// Makes the layer; the copy lies below `scratch` meanwhile.
    pub(crate) async fn run(
        &self,
        layers: &Layers,
        scratch: &Path,
        events: tokio::sync::mpsc::UnboundedSender<SourceEvent>,
    ) -> Result<LayerInfo, SourceError> {
        if !self.missing.is_empty() {
            let names = self.missing.join(", ");
            let message = format!(
                "this host has not installed {names}: the template will not have them either"
            );
            let _ = events.send(SourceEvent::Warning(message));
        }
        let names: Vec<String> = self.packages.keys().cloned().collect();
        let failed = |source| SourceError::File {
            path: scratch.to_owned(),
            source,
        };
        fs::create_dir_all(scratch).map_err(failed)?;
        fs::set_permissions(scratch, fs::Permissions::from_mode(0o700)).map_err(failed)?;
        let directory = tempfile::Builder::new()
            .prefix("host-")
            .tempdir_in(scratch)
            .map_err(failed)?;
        let _ = events.send(SourceEvent::Line(format!(
            "copying {} packages of this host",
            names.len()
        )));
        let copied = tokio::task::spawn_blocking(move || {
            let root = directory.path().to_owned();
            copy_packages(&names, &root).map(|count| (directory, count))
        });
        let (directory, count) = copied
            .await
            .map_err(|error| failed(io::Error::other(error)))??;
        let _ = events.send(SourceEvent::Line(format!("copied {count} files")));
        Ok(layers.import_tree(directory.path(), no_progress()).await?)
    }
}

/// Copies the files of `packages` below `root`; returns how many.
fn copy_packages(packages: &[String], root: &Path) -> Result<u64, SourceError> {
    let mut copy = Copy { root, count: 0 };
    let begun = SystemTime::now();
    copy.skeleton()?;
    let lists = file_lists(packages)?;
    for path in lists.iter().filter(|path| is_wanted(path)) {
        copy.path(Path::new(path))?;
    }
    copy.python_caches(&lists)?;
    copy.alternatives()?;
    copy.accounts()?;
    copy.certificates()?;
    // The cache of libraries is made for the copy; without it loading is slower, not wrong.
    let _ = Command::new("ldconfig")
        .arg("-r")
        .arg(root)
        .stdin(Stdio::null())
        .output();
    // Its notes hold inode numbers of this copy.
    let _ = fs::remove_dir_all(root.join("var/cache/ldconfig"));
    forget_times(root, begun)?;
    Ok(copy.count)
}

/// All paths of the packages, each directory before what it holds.
fn file_lists(packages: &[String]) -> Result<BTreeSet<String>, SourceError> {
    let wanted: BTreeSet<&str> = packages.iter().map(String::as_str).collect();
    let info = Path::new(DPKG).join("info");
    let failed = |source| SourceError::File {
        path: info.clone(),
        source,
    };
    let mut paths = BTreeSet::new();
    for entry in fs::read_dir(&info).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let Some(package) = name.to_str().and_then(|name| name.strip_suffix(".list")) else {
            continue;
        };
        if wanted.contains(package.split(':').next().unwrap_or(package)) {
            let text = fs::read_to_string(entry.path()).map_err(failed)?;
            paths.extend(
                text.lines()
                    .filter(|line| line.starts_with('/') && *line != "/.")
                    .map(str::to_owned),
            );
        }
    }
    Ok(paths)
}

fn is_wanted(path: &str) -> bool {
    let below = |parent: &str| {
        path == parent
            || path
                .strip_prefix(parent)
                .is_some_and(|rest| rest.starts_with('/'))
    };
    if LEFT_OUT.iter().any(|parent| below(parent)) {
        return false;
    }
    let Some(etc) = path.strip_prefix("/etc/") else {
        return true;
    };
    ETC.iter().any(|part| {
        etc == *part
            || etc
                .strip_prefix(part)
                .is_some_and(|rest| rest.starts_with('/'))
            || part.starts_with(&format!("{etc}/"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_local_files_are_not_wanted() {
        for path in [
            "/usr/bin/bash",
            "/etc/pam.d/sudo",
            "/etc/ssl",
            "/etc/ssl/openssl.cnf",
            "/etc/skel/.bashrc",
        ] {
            assert!(is_wanted(path), "{path}");
        }
        for path in [
            "/etc/ssl/private/key.pem",
            "/etc/ssh/ssh_host_rsa_key",
            "/etc/shadow",
            "/usr/local/bin/tool",
            "/usr/share/doc/x",
            "/etc/apt/auth.conf",
            "/etc/gitconfig",
        ] {
            assert!(!is_wanted(path), "{path}");
        }
    }

    /// The host's packages, for real.
    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "needs root and copies hundreds of megabytes"]
    async fn copies_packages_that_work_without_the_host() {
        let home = tempfile::tempdir().unwrap();
        let blobs = atoll_store::Blobs::open(home.path()).unwrap();
        let layers = Layers::open(home.path(), blobs).unwrap();
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        let begun = std::time::Instant::now();
        let info = Plan::new()
            .unwrap()
            .run(&layers, &home.path().join("scratch"), sender)
            .await
            .unwrap();
        println!("{:?} {info:?}", begun.elapsed());
        while let Ok(event) = receiver.try_recv() {
            println!("{event:?}");
        }
        let root = layers.path(&info.digest);
        for script in [
            "bash -c 'echo ok'",
            "python3 -c 'import ssl, json, venv; print(\"ok\")'",
            "test -x /usr/bin/git && echo ok",
            "awk 'BEGIN { print \"ok\" }'",
        ] {
            let output = Command::new("/usr/sbin/chroot")
                .arg(&root)
                .args(["/bin/sh", "-c", script])
                .env_clear()
                .env("PATH", "/usr/bin:/bin")
                .output()
                .unwrap();
            assert!(
                String::from_utf8_lossy(&output.stdout)
                    .trim_end()
                    .ends_with("ok"),
                "{script}: {output:?}"
            );
        }
        for absent in [
            "usr/local/bin/node",
            "etc/ssl/private",
            "etc/apt",
            "root/.bashrc",
            "etc/hostname",
        ] {
            assert!(!root.join(absent).exists(), "{absent}");
        }
    }
}
