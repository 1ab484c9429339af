//! A fresh Debian made by `mmdebstrap` from the host's own mirrors.
//!
//! `mmdebstrap` writes a tar to its standard output, which becomes the layer
//! while it is written. A hook finishes the tree before: the operator's
//! certificates, sources without credentials, nothing of this host's identity.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use atoll_store::{Digest, LayerInfo, Layers};
use serde::Serialize;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use super::apt::{self, AptEntry, Release};
use super::{SourceError, SourceEvent, trust};
use crate::templates::DebianSource;

const PROGRAM: &str = "mmdebstrap";
/// Longest time a bootstrap may take before it is given up.
const BOUND: Duration = Duration::from_secs(30 * 60);
/// Lines of its output kept for the message of a failure.
const LAST_LINES: usize = 20;
/// Documentation nobody reads in a sandbox; also left out of later installs.
const EXCLUDED: [&str; 6] = [
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/lintian/*",
];

/// Everything that decides what a bootstrap makes, found on the host.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    release: Release,
    entries: Vec<AptEntry>,
    packages: Vec<String>,
    certificates: Vec<String>,
}

/// The part of a [`Plan`] that is a key of the build cache.
#[derive(Debug, Serialize)]
pub(crate) struct PlanKey {
    source: &'static str,
    release: String,
    sources: String,
    packages: Vec<String>,
    certificates: Digest,
}

impl Plan {
    /// Looks at the host.
    pub(crate) fn of(source: &DebianSource) -> Result<Self, SourceError> {
        let host = |what: &str, hint: &str| SourceError::Host {
            what: what.to_owned(),
            hint: hint.to_owned(),
        };
        let offline = match Path::new("/var/lib/dpkg/info").is_dir() {
            true => {
                "build it from the host's own packages instead: `atoll template build base --offline`, or `from = \"host\"` in a spec"
            }
            // Nor are there packages that could be copied.
            false => {
                "build the template on a Debian or Ubuntu host and copy its `layers`, `blobs` and `templates` here"
            }
        };
        let release = fs::read_to_string("/etc/os-release")
            .ok()
            .and_then(|text| Release::parse(&text));
        let release = release
            .ok_or_else(|| host("this host is not a release of Debian or Ubuntu", offline))?;
        let entries = apt::read_entries(Path::new("/etc/apt"), &release);
        if entries.is_empty() {
            let what = format!(
                "/etc/apt has no source of `{}` with the component `main`",
                release.codename
            );
            return Err(host(
                &what,
                "add the distribution's own source, or build `base` with --offline (in a spec: `from = \"host\"`)",
            ));
        }
        let mut packages = source.packages.clone();
        packages.sort();
        packages.dedup();
        Ok(Self {
            release,
            entries,
            packages,
            certificates: trust::added_certificates(),
        })
    }

    pub(crate) fn key(&self) -> PlanKey {
        PlanKey {
            source: "debian",
            release: self.release.codename.clone(),
            sources: apt::public_sources_file(&self.entries),
            packages: self.packages.clone(),
            certificates: trust::digest(&self.certificates),
        }
    }

    /// Makes the layer.
    pub(crate) async fn run(
        &self,
        layers: &Layers,
        events: mpsc::UnboundedSender<SourceEvent>,
    ) -> Result<LayerInfo, SourceError> {
        let files = self.write_files().await?;
        let mut child = self
            .command(&files)
            .spawn()
            .map_err(|source| match source.kind() {
                std::io::ErrorKind::NotFound => SourceError::Host {
                    what: format!("`{PROGRAM}` is not installed"),
                    hint: format!("`apt-get install {PROGRAM}`, or build `base` with --offline (in a spec: `from = \"host\"`)"),
                },
                _ => SourceError::Program {
                    program: PROGRAM,
                    source,
                },
            })?;
        let program = |source| SourceError::Program {
            program: PROGRAM,
            source,
        };
        let missing = || program(std::io::Error::other("it has no output"));
        let stdout = child.stdout.take().ok_or_else(missing)?;
        let stderr = child.stderr.take().ok_or_else(missing)?;
        let stdout = fs::File::from(stdout.into_owned_fd().map_err(program)?);
        let mut running = Running(child);
        let stored = events.clone();
        let progress = Arc::new(move |bytes| {
            // Nobody listens any more: the build was given up.
            let _ = stored.send(SourceEvent::Stored(bytes));
        });
        let work = async {
            tokio::join!(
                layers.import_tar(stdout, progress),
                relay(stderr, &events),
                running.0.wait()
            )
        };
        let Ok((layer, lines, status)) = tokio::time::timeout(BOUND, work).await else {
            let status = format!("no end after {} minutes", BOUND.as_secs() / 60);
            return Err(SourceError::Failed {
                program: PROGRAM,
                status,
                lines: Vec::new(),
            });
        };
        let status = status.map_err(program)?;
        if !status.success() {
            // A whole archive from a program that then failed is not to be trusted.
            if let Ok(layer) = layer {
                layers.remove(&layer.digest).await?;
            }
            return Err(SourceError::Failed {
                program: PROGRAM,
                status: status.to_string(),
                lines,
            });
        }
        Ok(layer?)
    }

    fn command(&self, files: &Files) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .args([
                "--mode=root",
                "--variant=apt",
                "--format=tar",
                "--skip=output/dev,output/mknod",
            ])
            .arg(format!("--include={}", self.packages.join(",")))
            .arg(format!("--aptopt={}", files.apt_settings.display()))
            .arg("--aptopt=Acquire::Languages \"none\"")
            // Else `python3-pip` brings a compiler: 160 MB that few need.
            .arg("--aptopt=APT::Install-Recommends \"false\"")
            .args(EXCLUDED.iter().map(|option| format!("--dpkgopt={option}")))
            .arg(format!("--customize-hook={}", files.hook.display()))
            .arg(&self.release.codename)
            .arg("-")
            .arg(&files.sources)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(false)
            // Secrets in the environment of the operator are none of its business.
            .env_clear()
            .env(
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            )
            .env("LC_ALL", "C.UTF-8")
            .env("HOME", "/root");
        for name in [
            "http_proxy",
            "https_proxy",
            "no_proxy",
            "TMPDIR",
            "SOURCE_DATE_EPOCH",
        ] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command
    }

    async fn write_files(&self) -> Result<Files, SourceError> {
        let dump = Command::new("apt-config")
            .arg("dump")
            .stdin(Stdio::null())
            .output()
            .await;
        let dump = dump.map_err(|source| SourceError::Program {
            program: "apt-config",
            source,
        })?;
        let settings = apt::acquire_settings(&String::from_utf8_lossy(&dump.stdout));
        let file = |source| SourceError::File {
            path: std::env::temp_dir(),
            source,
        };
        let directory = tempfile::Builder::new()
            .prefix("atoll-debian-")
            .tempdir()
            .map_err(file)?;
        let files = Files {
            sources: directory.path().join("debian.sources"),
            apt_settings: directory.path().join("apt.conf"),
            hook: directory.path().join("finish"),
            directory,
        };
        let write = |path: &Path, text: &str| {
            fs::write(path, text).map_err(|source| SourceError::File {
                path: path.to_owned(),
                source,
            })
        };
        write(&files.sources, &apt::sources_file(&self.entries))?;
        let mut text = settings.join("\n");
        text.push('\n');
        write(&files.apt_settings, &text)?;
        let at = |name: &str| files.directory.path().join(name);
        write(
            &at("public.sources"),
            &apt::public_sources_file(&self.entries),
        )?;
        let mut text = apt::public_settings(&settings).join("\n");
        text.push('\n');
        write(&at("public.conf"), &text)?;
        write(
            &at("keyrings"),
            &(apt::keyrings(&self.entries).join("\n") + "\n"),
        )?;
        for (number, certificate) in self.certificates.iter().enumerate() {
            write(&at(&format!("host-{number}.crt")), certificate)?;
        }
        write(&files.hook, &hook(files.directory.path()))?;
        fs::set_permissions(&files.hook, fs::Permissions::from_mode(0o700)).map_err(|source| {
            SourceError::File {
                path: files.hook.clone(),
                source,
            }
        })?;
        Ok(files)
    }
}

/// The files that a run of `mmdebstrap` reads, gone when dropped.
struct Files {
    sources: PathBuf,
    apt_settings: PathBuf,
    hook: PathBuf,
    directory: TempDir,
}

/// Finishes the tree, which is the first argument, from the host's side.
fn hook(files: &Path) -> String {
    let mut script = String::from("#!/bin/sh\nset -eu\nroot=\"$1\"\n");
    // Writing to a string cannot fail. The path is one of our own temporary directories.
    let _ = writeln!(script, "files='{}'", files.display());
    script.push_str(
        r#"
# Sources as the host has them, without credentials; none of the build's own settings.
rm -f "$root"/etc/apt/sources.list "$root"/etc/apt/sources.list.d/* "$root"/etc/apt/apt.conf.d/99mmdebstrap
install -m 0644 "$files/public.sources" "$root/etc/apt/sources.list.d/debian.sources"
install -m 0644 "$files/public.conf" "$root/etc/apt/apt.conf.d/90atoll"
while read -r keyring; do
    if [ -n "$keyring" ] && [ ! -e "$root$keyring" ]; then
        install -D -m 0644 "$keyring" "$root$keyring"
    fi
done < "$files/keyrings"

# What the operator trusts is trusted inside.
for certificate in "$files"/host-*.crt; do
    [ -e "$certificate" ] || continue
    install -D -m 0644 "$certificate" "$root/usr/local/share/ca-certificates/$(basename "$certificate")"
done
if [ -x "$root/usr/sbin/update-ca-certificates" ]; then
    chroot "$root" update-ca-certificates >/dev/null 2>&1
fi

# Nothing of this host's identity, nothing that only this build needed.
rm -f "$root/etc/hostname" "$root/etc/resolv.conf" "$root"/etc/ssh/ssh_host_*
: > "$root/etc/machine-id"
rm -rf "$root"/var/lib/dbus/machine-id "$root"/var/log/* "$root"/tmp/* "$root"/var/cache/debconf/*-old
find "$root/var/lib/dpkg" -maxdepth 1 -name '*-old' -delete
"#,
    );
    script
}

/// Passes the lines of a program on; returns the last of them.
async fn relay(
    stderr: tokio::process::ChildStderr,
    events: &mpsc::UnboundedSender<SourceEvent>,
) -> Vec<String> {
    let mut last = Vec::new();
    let mut lines = BufReader::new(stderr).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if last.len() == LAST_LINES {
            last.remove(0);
        }
        last.push(line.clone());
        let _ = events.send(SourceEvent::Line(line));
    }
    last
}

/// Ends the whole process group when the build is given up. `mmdebstrap`
/// removes its temporary directory when asked to end.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let Some(pid) = self
            .0
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(rustix::process::Pid::from_raw)
        else {
            return;
        };
        // Already gone is what we want.
        let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::TERM);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_store::Blobs;

    /// The packages of `base`, for real. Run it with
    /// `cargo test -p atoll-control --release -- --ignored bootstraps`.
    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "needs root, a mirror and a minute"]
    async fn bootstraps_the_base_template() {
        let spec = include_str!("../../../../../templates/base.toml");
        let spec = crate::templates::TemplateSpec::parse(spec, "base.toml").unwrap();
        let crate::templates::Source::Debian(source) = spec.from else {
            panic!("not from debian")
        };
        let home = tempfile::tempdir().unwrap();
        let layers = Layers::open(home.path(), Blobs::open(home.path()).unwrap()).unwrap();
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let begun = std::time::Instant::now();
        let info = Plan::of(&source)
            .unwrap()
            .run(&layers, sender)
            .await
            .unwrap();
        println!("{:?} {info:?}", begun.elapsed());
        while let Ok(event) = receiver.try_recv() {
            if let SourceEvent::Line(line) = event {
                println!("{line}");
            }
        }
        let root = layers.path(&info.digest);
        for present in [
            "usr/bin/python3",
            "usr/bin/sudo",
            "usr/bin/git",
            "etc/machine-id",
            "etc/apt/sources.list.d/debian.sources",
        ] {
            assert!(root.join(present).exists(), "{present}");
        }
        for absent in [
            "etc/hostname",
            "etc/resolv.conf",
            "dev/null",
            "etc/apt/apt.conf.d/99mmdebstrap",
        ] {
            assert!(!root.join(absent).exists(), "{absent}");
        }
        let bundle = fs::read_to_string(root.join("etc/ssl/certs/ca-certificates.crt")).unwrap();
        for certificate in trust::added_certificates() {
            let line = certificate.lines().nth(1).unwrap();
            assert!(
                bundle.contains(line),
                "a certificate of the host is not trusted inside"
            );
        }
    }
}
