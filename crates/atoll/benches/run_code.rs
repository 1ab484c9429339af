//! `cargo xtask bench run-code`: cells through the server, beside
//! `jupyter_client` inside the same sandbox and beside a bridge of FastAPI and
//! a Jupyter server there, through the same proxy.
//!
//! All take turns, so that whatever else the machine does hits each of them.
//! Every answer is looked at: a fast answer without its picture counts as a
//! failure, not as a time.
//!
//! What runs in which kernel:
//! - ours is what users of the template get, with all of our hooks: the data of
//!   frames, charts of figures;
//! - `jupyter_client` starts the kernel of the same specification, as it comes
//!   from ipykernel, and has it show the data of frames, so that the same bytes
//!   are compared. Charts, which it does not have, come on top for ours;
//! - the bridge has the kernel that E2B's template has: the same ipykernel with
//!   its usual backend for figures, the data of frames, and E2B's own package for
//!   charts. `TCP_NODELAY` is set on every connection of it.
//!
//! All have the same packages, among them `orjson`, which `jupyter_client` and
//! ipykernel take where it is installed.

mod support;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use atoll_client::{CodeOptions, CreateOptions, Execution, NewContext, ProcessEvent, Sandbox};
use support::connection::Connection;
use support::server::Server;
use support::{Result, kept, percentile, row};

const TEMPLATE: &str = "bench-run-code";

const BASELINE: &str = include_str!("run_code/baseline.py");
const BRIDGE: &str = include_str!("run_code/bridge.py");
const SDK: &str = include_str!("run_code/sdk.py");

/// Where the bridge listens.
const BRIDGE_PORT: u16 = 3000;

/// What every kernel has done before anything is measured: a frame of 100 kB.
const PREPARATION: &str = "
import numpy as np, pandas as pd, matplotlib.pyplot as plt
frame = pd.DataFrame(np.arange(12500.0).reshape(2500, 5) / 7, columns=list('abcde'))
x = np.linspace(0, 10, 100)
";

/// What kernels that are not ours need to show the same of a frame: its data
/// beside its text and HTML, as in E2B's template.
const SAME_FORMS: &str = "
from IPython import get_ipython
from IPython.core.formatters import BaseFormatter
from traitlets import ObjectName, Unicode
class DataFormatter(BaseFormatter):
    format_type = Unicode('e2b/data')
    print_method = ObjectName('_repr_e2b_data_')
    _return_type = (dict, list)
display = get_ipython().display_formatter
display.formatters['e2b/data'] = DataFormatter(parent=display)
display.formatters['e2b/data'].for_type(pd.DataFrame, lambda frame: frame.to_dict(orient='list'))
";

/// What the kernel behind the bridge has besides, as in E2B's template: charts of
/// figures, by E2B's own package.
const CHARTS_OF_E2B: &str = "
import matplotlib.figure
from e2b_charts import chart_figure_to_dict
class ChartFormatter(BaseFormatter):
    format_type = Unicode('e2b/chart')
    print_method = ObjectName('_repr_e2b_chart_')
    _return_type = dict
    def __call__(self, value):
        if isinstance(value, matplotlib.figure.Figure):
            return chart_figure_to_dict(value)
        return super().__call__(value)
display.formatters['e2b/chart'] = ChartFormatter(parent=display)
";

/// A kind of cell.
struct Case {
    name: &'static str,
    code: &'static str,
    /// What must come of it, as Jupyter calls it.
    kind: &'static str,
}

const CASES: [Case; 4] = [
    Case {
        name: "1+1",
        code: "1+1",
        kind: "text/plain",
    },
    Case {
        name: "print",
        code: "print('hello')",
        kind: "stream",
    },
    Case {
        name: "DataFrame, 100 kB",
        code: "frame",
        kind: "e2b/data",
    },
    Case {
        name: "matplotlib PNG",
        code: "plt.plot(x, np.sin(x)); plt.show()",
        kind: "image/png",
    },
];

struct Options {
    count: usize,
    cold: usize,
}

fn main() -> Result<()> {
    let mut options = Options {
        count: 400,
        cold: 15,
    };
    support::options(&mut [
        ("--count", &mut options.count),
        ("--cold", &mut options.cold),
    ])?;
    println!("container tier, template `{TEMPLATE}`\n");
    let server = Server::start("container")?;
    support::runtime()?.block_on(measure(&server, &options))
}

async fn measure(server: &Server, options: &Options) -> Result<()> {
    let wish = CreateOptions {
        timeout: Some(Duration::from_secs(3600)),
        ..CreateOptions::template(TEMPLATE)
    };
    let sandbox = server.client()?.create(&wish).await?;
    let result = async {
        let mut ways = Ways::open(server, &sandbox).await?;
        for case in &CASES {
            ways.warm(case, options.count).await?;
        }
        ways.cold(options.cold).await
    }
    .await;
    sandbox.kill().await?;
    result
}

/// Every way to run a cell.
struct Ways<'a> {
    sandbox: &'a Sandbox,
    baseline: Inside,
    bridge: Connection,
    bridge_head: String,
    sdk: Outside,
    /// Kept, so that it runs on.
    _bridge: Inside,
}

impl<'a> Ways<'a> {
    async fn open(server: &Server, sandbox: &'a Sandbox) -> Result<Self> {
        sandbox.files().write("baseline.py", BASELINE).await?;
        sandbox.files().write("bridge.py", BRIDGE).await?;
        let baseline = Inside::start(sandbox, "baseline.py").await?;
        let bridge = Inside::spawn(sandbox, "bridge.py").await?;
        let head = format!(
            "host: 127.0.0.1\r\ne2b-sandbox-id: {}\r\ne2b-sandbox-port: {BRIDGE_PORT}\r\n",
            sandbox.id()
        );
        let health = format!("GET /health HTTP/1.1\r\n{head}\r\n");
        let connection = server.wait_for(&health)?;
        let mut ways = Self {
            sandbox,
            baseline,
            bridge: connection,
            bridge_head: head,
            sdk: Outside::start(server, sandbox.id())?,
            _bridge: bridge,
        };
        run(sandbox, PREPARATION).await?;
        let preparation = format!("{PREPARATION}{SAME_FORMS}");
        ways.baseline.ask(&code(&preparation)).await?;
        ways.through_bridge(&format!("{preparation}{CHARTS_OF_E2B}"))?;
        Ok(ways)
    }

    /// One kind of cell, again and again, in kernels that run.
    async fn warm(&mut self, case: &Case, count: usize) -> Result<()> {
        let mut times: [Vec<Duration>; 4] = Default::default();
        for round in 0..=count {
            let begin = Instant::now();
            let execution = run(self.sandbox, case.code).await?;
            let ours = begin.elapsed();
            check(case, "atoll", &kinds(&execution))?;

            let answer = self.baseline.ask(&code(case.code)).await?;
            let baseline = seconds(&answer, case, "jupyter_client")?;

            let begin = Instant::now();
            let text = self.through_bridge(case.code)?;
            let bridge = begin.elapsed();
            check(case, "the bridge", &bridge_kinds(&text)?)?;

            let sdk = seconds(&self.sdk.ask(&code(case.code))?, case, "the SDK")?;
            // The first round warms caches and is not counted.
            if round > 0 {
                for (times, took) in times.iter_mut().zip([ours, baseline, bridge, sdk]) {
                    times.push(took);
                }
            }
        }
        let [ours, baseline, bridge, sdk] = &times;
        println!("{}", case.name);
        row("  atoll", ours);
        row("  jupyter_client inside", baseline);
        row("  FastAPI + Jupyter", bridge);
        row("  atoll, E2B's SDK", sdk);
        let ratio = |other: &[Duration], percent| {
            percentile(ours, percent).as_secs_f64() / percentile(other, percent).as_secs_f64()
        };
        let (middle, high) = (ratio(baseline, 50), ratio(baseline, 99));
        let faster = 1.0 / ratio(bridge, 50);
        println!(
            "  p50 {middle:.2} x jupyter_client; promise: at most 1.0 ({})",
            kept(middle <= 1.0)
        );
        println!(
            "  p99 {high:.2} x jupyter_client; promise: at most 1.0 ({})",
            kept(high <= 1.0)
        );
        println!(
            "  p50 {faster:.1} times as fast as the bridge; promise: at least 2 ({})\n",
            kept(faster >= 2.0)
        );
        Ok(())
    }

    /// A kernel that does not run yet, up to its first result.
    async fn cold(&mut self, count: usize) -> Result<()> {
        let (mut ours, mut contexts, mut firsts) = (Vec::new(), Vec::new(), Vec::new());
        let mut baseline = Vec::new();
        let mut parts: [Vec<Duration>; 3] = Default::default();
        let case = &CASES[0];
        for round in 0..=count {
            let begin = Instant::now();
            let context = self
                .sandbox
                .code()
                .create_context(&NewContext::default())
                .await?;
            let made = begin.elapsed();
            let options = CodeOptions {
                context: Some(context.id.clone()),
                ..CodeOptions::default()
            };
            let execution = self.sandbox.code().run(case.code, &options, |_| {}).await?;
            let took = begin.elapsed();
            check(case, "atoll", &kinds(&execution))?;
            self.sandbox.code().remove_context(&context.id).await?;

            let question = serde_json::json!({"cold": case.code}).to_string();
            let answer = self.baseline.ask(&question).await?;
            let theirs = seconds(&answer, case, "jupyter_client")?;
            if round > 0 {
                ours.push(took);
                contexts.push(made);
                firsts.push(took - made);
                baseline.push(theirs);
                let values = answer["parts"].as_array().ok_or("no parts")?;
                for (times, value) in parts.iter_mut().zip(values) {
                    times.push(Duration::from_secs_f64(value.as_f64().ok_or("no time")?));
                }
            }
        }
        println!("cold kernel to its first result");
        row("  atoll", &ours);
        row("    kernel made, ready", &contexts);
        row("    first cell", &firsts);
        row("  jupyter_client inside", &baseline);
        row("    process started", &parts[0]);
        row("    kernel ready", &parts[1]);
        row("    first cell", &parts[2]);
        let ratio = percentile(&ours, 50).as_secs_f64() / percentile(&baseline, 50).as_secs_f64();
        println!(
            "  p50 {ratio:.2} x jupyter_client; promise: at most 0.5 ({})",
            kept(ratio <= 0.5)
        );
        Ok(())
    }

    fn through_bridge(&mut self, text: &str) -> Result<String> {
        let body = code(text);
        let request = format!(
            "POST /execute HTTP/1.1\r\n{}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.bridge_head,
            body.len()
        );
        Ok(self.bridge.ask_for_text(&request)?)
    }
}

async fn run(sandbox: &Sandbox, text: &str) -> Result<Execution> {
    let execution = sandbox
        .code()
        .run(text, &CodeOptions::default(), |_| {})
        .await?;
    match &execution.error {
        Some(error) => Err(format!("{}: {}", error.name, error.value).into()),
        None => Ok(execution),
    }
}

fn code(text: &str) -> String {
    serde_json::json!({"code": text}).to_string()
}

/// What came of a cell, in the words of Jupyter.
fn kinds(execution: &Execution) -> Vec<String> {
    let mut kinds = Vec::new();
    for result in &execution.results {
        let forms = [
            ("text/plain", result.text.is_some()),
            ("text/html", result.html.is_some()),
            ("image/png", result.png.is_some()),
            ("e2b/data", result.data.is_some()),
        ];
        let there = forms.into_iter().filter(|(_, is_there)| *is_there);
        kinds.extend(there.map(|(name, _)| name.to_owned()));
    }
    if !execution.logs.stdout.is_empty() {
        kinds.push("stream".to_owned());
    }
    kinds
}

fn bridge_kinds(text: &str) -> Result<Vec<String>> {
    let mut kinds = Vec::new();
    for line in text.lines() {
        let line: serde_json::Value = serde_json::from_str(line)?;
        if line["type"] == "stdout" {
            kinds.push("stream".to_owned());
        }
        for (key, name) in [
            ("text", "text/plain"),
            ("html", "text/html"),
            ("png", "image/png"),
            ("data", "e2b/data"),
        ] {
            if line["type"] == "result" && line.get(key).is_some() {
                kinds.push(name.to_owned());
            }
        }
    }
    Ok(kinds)
}

fn check(case: &Case, who: &str, kinds: &[String]) -> Result<()> {
    // E2B's SDK has shorter names.
    let short = case.kind.rsplit('/').next().unwrap_or(case.kind);
    let short = if short == "plain" { "text" } else { short };
    if kinds.iter().any(|kind| kind == case.kind || kind == short) {
        return Ok(());
    }
    Err(format!(
        "{who} answered `{}` without {}: {kinds:?}",
        case.code, case.kind
    )
    .into())
}

/// The time that a baseline measured itself.
fn seconds(answer: &serde_json::Value, case: &Case, who: &str) -> Result<Duration> {
    let kinds: Vec<String> = serde_json::from_value(answer["kinds"].clone())?;
    check(case, who, &kinds)?;
    let seconds = answer["seconds"].as_f64().ok_or("no time")?;
    Ok(Duration::from_secs_f64(seconds))
}

/// A program inside the sandbox that answers lines.
struct Inside {
    process: atoll_client::Process,
    output: Vec<u8>,
}

impl Inside {
    async fn spawn(sandbox: &Sandbox, file: &str) -> Result<Self> {
        let command = atoll_client::Command {
            cmd: "python3".to_owned(),
            args: vec![file.to_owned()],
            stdin: true,
            ..atoll_client::Command::default()
        };
        Ok(Self {
            process: sandbox.commands().start(&command).await?,
            output: Vec::new(),
        })
    }

    async fn start(sandbox: &Sandbox, file: &str) -> Result<Self> {
        let mut inside = Self::spawn(sandbox, file).await?;
        inside.answer().await?;
        Ok(inside)
    }

    async fn ask(&mut self, question: &str) -> Result<serde_json::Value> {
        let line = format!("{question}\n");
        self.process.input().send(line.as_bytes()).await?;
        self.answer().await
    }

    async fn answer(&mut self) -> Result<serde_json::Value> {
        loop {
            if let Some(end) = self.output.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.output.drain(..=end).collect();
                return Ok(serde_json::from_slice(&line)?);
            }
            match self.process.next().await? {
                Some(ProcessEvent::Stdout(bytes)) => self.output.extend_from_slice(&bytes),
                Some(ProcessEvent::Stderr(bytes)) => {
                    eprint!("{}", String::from_utf8_lossy(&bytes));
                }
                Some(ProcessEvent::Pty(_)) => {}
                Some(ProcessEvent::End(_)) | None => return Err("a baseline has ended".into()),
            }
        }
    }
}

/// E2B's SDK, outside.
struct Outside {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Outside {
    fn start(server: &Server, sandbox: &str) -> Result<Self> {
        let clients = std::env::var_os("ATOLL_TEST_CLIENTS").map(PathBuf::from);
        let clients = clients.ok_or("ATOLL_TEST_CLIENTS is not set: use `cargo xtask bench`")?;
        let mut child = Command::new(clients.join("python/bin/python"))
            .args(["-c", SDK, sandbox])
            .envs(server.variables())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().ok_or("no input")?;
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        let mut outside = Self {
            child,
            input,
            output,
        };
        outside.answer()?;
        Ok(outside)
    }

    fn ask(&mut self, question: &str) -> Result<serde_json::Value> {
        writeln!(self.input, "{question}")?;
        self.answer()
    }

    fn answer(&mut self) -> Result<serde_json::Value> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
