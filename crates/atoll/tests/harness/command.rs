//! One run of the binary: how it is started, fed, watched and bounded.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{Read, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};

use super::{BOUND, TestHome, binary, tier};

/// How a command ended; text that is no UTF-8 is shown as well as it can be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// Exit status, or minus the signal.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    /// Success with exactly this output and nothing on standard error.
    pub fn printed(stdout: &str) -> Self {
        Self::with_code(0, stdout)
    }

    /// This status and output, and nothing on standard error.
    pub fn with_code(code: i32, stdout: &str) -> Self {
        Self {
            code,
            stdout: stdout.to_owned(),
            stderr: String::new(),
        }
    }

    /// The one JSON value on standard output.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error} in {self:#?}"))
    }

    /// Standard output of a command that must have succeeded.
    pub fn succeeded(self) -> String {
        assert_eq!(self.code, 0, "{self:#?}");
        self.stdout
    }
}

/// A command that has not been started.
pub struct Invocation {
    prefix: Vec<OsString>,
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: BTreeMap<OsString, Option<OsString>>,
    directory: PathBuf,
    input: Input,
}

enum Input {
    Nothing,
    Bytes(Vec<u8>),
    Open,
}

impl Invocation {
    pub(super) fn new<S: AsRef<OsStr>>(
        home: &TestHome,
        arguments: impl IntoIterator<Item = S>,
    ) -> Self {
        let invocation = Self {
            prefix: Vec::new(),
            program: binary(),
            arguments: arguments
                .into_iter()
                .map(|word| word.as_ref().to_owned())
                .collect(),
            environment: BTreeMap::new(),
            directory: home.work().to_owned(),
            input: Input::Nothing,
        };
        invocation
            .without_env("ATOLL_OCI_RUNTIME")
            .without_env("ATOLL_MINIMUM_ISOLATION")
            .env("ATOLL_ISOLATION", tier().to_string())
            .env("ATOLL_HOME", home.path())
    }

    /// Sets a variable of the caller's environment.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment
            .insert(name.into(), Some(value.as_ref().to_owned()));
        self
    }

    /// Takes a variable out of the caller's environment.
    pub fn without_env(mut self, name: &str) -> Self {
        self.environment.insert(name.into(), None);
        self
    }

    /// Adds arguments.
    pub fn and<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.arguments
            .extend(arguments.into_iter().map(|word| word.as_ref().to_owned()));
        self
    }

    /// Adds options, right after the name of the command.
    pub fn and_options<S: AsRef<OsStr>>(mut self, options: &[S]) -> Self {
        let options = options.iter().map(|word| word.as_ref().to_owned());
        self.arguments.splice(1..1, options);
        self
    }

    /// Runs the command through another program, such as `unshare`.
    pub fn through<S: AsRef<OsStr>>(mut self, program: impl IntoIterator<Item = S>) -> Self {
        self.prefix = program
            .into_iter()
            .map(|word| word.as_ref().to_owned())
            .collect();
        self
    }

    /// Runs another program with the same arguments and surroundings.
    pub fn instead(mut self, program: &Path) -> Self {
        self.program = program.to_owned();
        self
    }

    /// What is on its standard input.
    pub fn stdin(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.input = Input::Bytes(bytes.as_ref().to_vec());
        self
    }

    /// Runs it to its end.
    pub fn finish(self) -> Finished {
        self.spawn().finish()
    }

    /// Runs it to its end and returns status and output as they came.
    pub fn bytes(self) -> (i32, Vec<u8>, Vec<u8>) {
        self.spawn().bytes()
    }

    /// Starts it with a standard input that stays open.
    pub fn start(mut self) -> Running {
        self.input = Input::Open;
        self.spawn()
    }

    fn spawn(self) -> Running {
        let mut words = self.prefix;
        words.push(self.program.into());
        words.extend(self.arguments);
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .current_dir(self.directory)
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.stdin(match self.input {
            Input::Nothing => Stdio::null(),
            Input::Bytes(_) | Input::Open => Stdio::piped(),
        });
        // Shells let what they start in the background ignore Ctrl-C.
        // SAFETY: `signal` may be called between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                Ok(())
            });
        }
        for (name, value) in self.environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take();
        if let Input::Bytes(bytes) = self.input {
            let mut pipe = stdin.take().unwrap();
            // A command that does not read its input must not stop the test.
            std::thread::spawn(move || pipe.write_all(&bytes));
        }
        Running {
            stdout: Stream::read(child.stdout.take().unwrap()),
            stderr: Stream::read(child.stderr.take().unwrap()),
            description: format!("{words:?}").chars().take(400).collect(),
            started: Instant::now(),
            stdin,
            child,
            is_over: false,
        }
    }
}

/// A command that runs. Dropped, its process group is killed.
pub struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Stream,
    stderr: Stream,
    description: String,
    started: Instant,
    is_over: bool,
}

impl Running {
    /// Its process.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits until standard output holds `text`, and returns all of it so far.
    pub fn wait_for(&mut self, text: &str) -> String {
        let seen = self.stdout.wait(self.left(), |bytes| {
            String::from_utf8_lossy(bytes).contains(text)
        });
        let shown = || (self.stdout.text(), self.stderr.text());
        seen.unwrap_or_else(|()| {
            panic!(
                "{} never printed {text:?}: {:#?}",
                self.description,
                shown()
            )
        })
    }

    /// Writes to its standard input.
    pub fn write(&mut self, text: &str) {
        self.stdin
            .as_mut()
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
    }

    /// Sends a signal to the command alone.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Sends a signal to its process group, as a terminal does.
    pub fn signal_group(&self, signal: Signal) {
        kill_process_group(self.pid(), signal).unwrap();
    }

    /// Closes its standard input and waits for its end.
    pub fn finish(self) -> Finished {
        let (code, stdout, stderr) = self.bytes();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Finished {
            code,
            stdout: text(stdout),
            stderr: text(stderr),
        }
    }

    fn bytes(mut self) -> (i32, Vec<u8>, Vec<u8>) {
        self.stdin.take();
        let status = self.wait();
        // Whoever still holds the pipes after the end is a process that leaked.
        for stream in [&self.stdout, &self.stderr] {
            assert!(
                stream.wait_for_end(Duration::from_secs(10)),
                "{} has ended, but its output is still held open",
                self.description
            );
        }
        let code = status.code().unwrap_or_else(|| -status.signal().unwrap());
        (code, self.stdout.take(), self.stderr.take())
    }

    fn wait(&mut self) -> ExitStatus {
        let pidfd = pidfd_open(self.pid(), PidfdFlags::empty()).unwrap();
        let left = Timespec::try_from(self.left()).unwrap();
        let ended = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&left)).unwrap();
        assert!(
            ended == 1,
            "{} did not end within {:?}: {:#?}",
            self.description,
            *BOUND,
            (self.stdout.text(), self.stderr.text())
        );
        self.is_over = true;
        self.child.wait().unwrap()
    }

    fn left(&self) -> Duration {
        BOUND.saturating_sub(self.started.elapsed())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_over {
            let _ = kill_process_group(self.pid(), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// A pipe that is read as soon as something is in it.
pub struct Stream {
    shared: Arc<(Mutex<Received>, Condvar)>,
}

#[derive(Default)]
struct Received {
    bytes: Vec<u8>,
    ended: bool,
}

impl Stream {
    pub fn read(mut pipe: impl Read + Send + 'static) -> Self {
        let shared = Arc::new((Mutex::new(Received::default()), Condvar::new()));
        let writer = Arc::clone(&shared);
        std::thread::spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            loop {
                let length = pipe.read(&mut buffer).unwrap_or(0);
                let mut received = writer.0.lock().unwrap();
                received.bytes.extend_from_slice(&buffer[..length]);
                received.ended = length == 0;
                writer.1.notify_all();
                if length == 0 {
                    return;
                }
            }
        });
        Self { shared }
    }

    /// Waits until `is_enough`, and returns everything; an error at the end of time or stream.
    pub fn wait(&self, bound: Duration, is_enough: impl Fn(&[u8]) -> bool) -> Result<String, ()> {
        let (received, changed) = &*self.shared;
        let waits = |received: &mut Received| !is_enough(&received.bytes) && !received.ended;
        let (received, _) = changed
            .wait_timeout_while(received.lock().unwrap(), bound, waits)
            .unwrap();
        if is_enough(&received.bytes) {
            Ok(String::from_utf8_lossy(&received.bytes).into_owned())
        } else {
            Err(())
        }
    }

    fn wait_for_end(&self, bound: Duration) -> bool {
        let (received, changed) = &*self.shared;
        let waits = |received: &mut Received| !received.ended;
        let (received, _) = changed
            .wait_timeout_while(received.lock().unwrap(), bound, waits)
            .unwrap();
        received.ended
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.shared.0.lock().unwrap().bytes).into_owned()
    }

    /// Everything so far; forgotten afterwards.
    pub fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.shared.0.lock().unwrap().bytes)
    }
}
