//! Kernels that are installed in the sandbox, found where Jupyter looks.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Longest `kernel.json`.
const SPEC_BYTES_MAX: u64 = 256 * 1024;

/// Where kernels are, besides what the environment adds.
const DIRECTORIES: [&str; 2] = ["/usr/local/share/jupyter", "/usr/share/jupyter"];

/// Most names of a list that is shown to somebody.
const SHOWN_MAX: usize = 32;

/// How a kernel is started and spoken to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KernelSpec {
    /// Program and arguments, with `{connection_file}` among them.
    pub(super) argv: Vec<String>,
    /// Variables of its own.
    pub(super) env: BTreeMap<String, String>,
    pub(super) interrupt: InterruptMode,
    pub(super) transport: Transport,
}

/// How its work is broken off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum InterruptMode {
    #[default]
    Signal,
    Message,
}

/// What its sockets are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Transport {
    /// Files in a directory of its own.
    #[default]
    Ipc,
    /// Ports of the loopback interface, for kernels that know nothing else;
    /// their `kernel.json` says so: `"metadata": {"transport": "tcp"}`.
    Tcp,
}

#[derive(Deserialize)]
struct SpecFile {
    argv: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    interrupt_mode: InterruptMode,
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Deserialize, Default)]
struct Metadata {
    #[serde(default)]
    transport: Transport,
}

/// Where to look, in a sandbox whose programs have this environment.
#[derive(Debug)]
pub(super) struct Places {
    jupyter: Vec<PathBuf>,
    path: Vec<PathBuf>,
}

impl Places {
    pub(super) fn new(env: &BTreeMap<String, String>, home: &str) -> Self {
        let list = |name: &str| -> Vec<PathBuf> {
            let text = env.get(name).map_or("", String::as_str);
            text.split(':')
                .filter(|part| part.starts_with('/'))
                .map(PathBuf::from)
                .collect()
        };
        let path = list("PATH");
        let mut jupyter = list("JUPYTER_PATH");
        jupyter.push(Path::new(home).join(".local/share/jupyter"));
        // Where a Python on the path has its own prefix, as in a virtual environment.
        jupyter.extend(
            path.iter()
                .filter_map(|bin| Some(bin.parent()?.join("share/jupyter"))),
        );
        jupyter.extend(DIRECTORIES.map(PathBuf::from));
        Self { jupyter, path }
    }

    /// The kernel of that name, which has to be one.
    pub(super) fn kernel(&self, name: &str) -> Option<KernelSpec> {
        self.jupyter.iter().find_map(|place| {
            let directory = place.join("kernels").join(name);
            let text = read_bounded(&directory.join("kernel.json"))?;
            let file: SpecFile = serde_json::from_str(&text).ok()?;
            let directory = directory.to_str()?;
            let argv: Vec<String> = file
                .argv
                .iter()
                .map(|word| word.replace("{resource_dir}", directory))
                .collect();
            (!argv.is_empty()).then_some(KernelSpec {
                argv,
                env: file.env,
                interrupt: file.interrupt_mode,
                transport: file.metadata.transport,
            })
        })
    }

    /// Names of kernels that can be found.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .jupyter
            .iter()
            .filter_map(|place| std::fs::read_dir(place.join("kernels")).ok())
            .flat_map(|entries| entries.take(SHOWN_MAX).flatten())
            .filter(|entry| entry.path().join("kernel.json").is_file())
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names.dedup();
        names.truncate(SHOWN_MAX);
        names
    }

    /// The program of that name.
    pub(super) fn program(&self, name: &str) -> Option<String> {
        if name.starts_with('/') {
            return Some(name.to_owned());
        }
        self.path
            .iter()
            .map(|directory| directory.join(name))
            .find(|path| {
                path.metadata()
                    .is_ok_and(|stat| stat.is_file() && stat.permissions().mode() & 0o111 != 0)
            })
            .and_then(|path| path.into_os_string().into_string().ok())
    }
}

impl KernelSpec {
    /// If it is ipykernel: the Python that runs it, and what follows the
    /// name of its module.
    pub(super) fn as_ipykernel(&self) -> Option<(&str, &[String])> {
        let at = self.argv.windows(2).position(|pair| {
            pair[0] == "-m" && matches!(pair[1].as_str(), "ipykernel_launcher" | "ipykernel")
        })?;
        let options = self.argv.get(1..at)?;
        // Options of Python itself would not be in force in a fork.
        let are_known = options
            .iter()
            .all(|option| option == "-Xfrozen_modules=off");
        are_known.then(|| (self.argv[0].as_str(), &self.argv[at + 2..]))
    }
}

/// Reads a file and nothing that could let us wait.
fn read_bounded(path: &Path) -> Option<String> {
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    file.take(SPEC_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(home: &Path) -> Places {
        let path = home.join("venv/bin");
        let env = BTreeMap::from([("PATH".to_owned(), path.to_str().unwrap().to_owned())]);
        Places::new(&env, home.to_str().unwrap())
    }

    fn install(at: &Path, name: &str, json: &str) {
        let directory = at.join("share/jupyter/kernels").join(name);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("kernel.json"), json).unwrap();
    }

    #[test]
    fn the_users_own_kernel_comes_first() {
        let home = tempfile::tempdir().unwrap();
        install(&home.path().join("venv"), "k", r#"{"argv":["theirs"]}"#);
        let found = places(home.path()).kernel("k").unwrap();
        assert_eq!(found.argv, ["theirs"]);
        install(
            &home.path().join(".local"),
            "k",
            r#"{"argv":["own","{resource_dir}/x","{connection_file}"],"env":{"A":"1"},
                "interrupt_mode":"message","metadata":{"transport":"tcp","debugger":true}}"#,
        );
        let directory = home.path().join(".local/share/jupyter/kernels/k/x");
        assert_eq!(
            places(home.path()).kernel("k"),
            Some(KernelSpec {
                argv: vec![
                    "own".to_owned(),
                    directory.to_str().unwrap().to_owned(),
                    "{connection_file}".to_owned()
                ],
                env: BTreeMap::from([("A".to_owned(), "1".to_owned())]),
                interrupt: InterruptMode::Message,
                transport: Transport::Tcp,
            })
        );
        assert!(places(home.path()).names().contains(&"k".to_owned()));
    }

    #[test]
    fn what_cannot_be_started_is_no_kernel() {
        let home = tempfile::tempdir().unwrap();
        for (name, json) in [
            ("a", "{}"),
            ("b", r#"{"argv":[]}"#),
            ("c", "not JSON"),
            ("d", r#"{"argv":"x"}"#),
        ] {
            install(&home.path().join(".local"), name, json);
            assert_eq!(places(home.path()).kernel(name), None, "{json}");
        }
        let pipe = home.path().join(".local/share/jupyter/kernels/e");
        std::fs::create_dir_all(&pipe).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            pipe.join("kernel.json"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        assert_eq!(places(home.path()).kernel("e"), None);
    }

    #[test]
    fn ipykernel_is_recognised_by_its_module() {
        let spec = |argv: &[&str]| KernelSpec {
            argv: argv.iter().map(|word| (*word).to_owned()).collect(),
            env: BTreeMap::new(),
            interrupt: InterruptMode::Signal,
            transport: Transport::Ipc,
        };
        let plain = spec(&[
            "/usr/bin/python3",
            "-m",
            "ipykernel_launcher",
            "-f",
            "{connection_file}",
        ]);
        assert_eq!(
            plain
                .as_ipykernel()
                .map(|(python, rest)| (python, rest.len())),
            Some(("/usr/bin/python3", 2))
        );
        assert!(
            spec(&["p", "-Xfrozen_modules=off", "-m", "ipykernel_launcher"])
                .as_ipykernel()
                .is_some()
        );
        assert_eq!(
            spec(&["p", "-O", "-m", "ipykernel_launcher"]).as_ipykernel(),
            None
        );
        assert_eq!(spec(&["p", "-m", "bash_kernel"]).as_ipykernel(), None);
        assert_eq!(spec(&["-m", "ipykernel_launcher"]).as_ipykernel(), None);
    }
}
