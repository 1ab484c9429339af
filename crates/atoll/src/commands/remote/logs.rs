//! `atoll logs`: what happened to a sandbox.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use atoll_client::{Client, ClientError, LogOptions, SandboxLogEntry};

use super::{about, server};
use crate::arguments::remote::LogsArguments;
use crate::home::Home;
use crate::terminal::harmless;

/// Pause between two questions for news.
const FOLLOW_PAUSE: Duration = Duration::from_millis(500);

/// Entries of one answer.
const PAGE: u32 = 1000;

pub(crate) async fn logs(home: &Home, arguments: &LogsArguments) -> anyhow::Result<ExitCode> {
    let sandbox = &arguments.sandbox;
    let client = server(home)?;
    let mut reader = Reader::new(&client, sandbox);
    let mut has_ended = false;
    loop {
        match reader.news().await {
            Ok(entries) => {
                let has_news = !entries.is_empty();
                for entry in entries {
                    show(&entry, arguments.json)?;
                }
                if has_news {
                    continue;
                }
            }
            Err(error) => return Err(about(sandbox, error)),
        }
        // A log is there for a while after its sandbox; nothing more comes then.
        if !arguments.follow || has_ended {
            return Ok(ExitCode::SUCCESS);
        }
        has_ended = match client.get(sandbox).await {
            Ok(_) => false,
            // What was written last may have come after the last look.
            Err(ClientError::NotFound(_)) => true,
            Err(error) => return Err(error.into()),
        };
        if has_ended {
            continue;
        }
        tokio::select! {
            () = tokio::time::sleep(FOLLOW_PAUSE) => {}
            _ = tokio::signal::ctrl_c() => return Ok(ExitCode::SUCCESS),
        }
    }
}

/// Reads a log from its beginning, each entry once.
struct Reader<'a> {
    client: &'a Client,
    sandbox: &'a str,
    /// The moment of the last entry, and how many of that moment are read.
    last: Option<(String, usize)>,
}

impl<'a> Reader<'a> {
    fn new(client: &'a Client, sandbox: &'a str) -> Self {
        Self {
            client,
            sandbox,
            last: None,
        }
    }

    /// What came since the last time.
    async fn news(&mut self) -> Result<Vec<SandboxLogEntry>, ClientError> {
        let start = match &self.last {
            Some((moment, _)) => Some(parse(moment)?),
            None => None,
        };
        let options = LogOptions {
            start,
            limit: Some(PAGE),
        };
        let mut entries = self.client.logs(self.sandbox, options).await?;
        if let Some((moment, read)) = &self.last {
            let seen = entries
                .iter()
                .take_while(|entry| entry.timestamp <= *moment)
                .count();
            entries.drain(..seen.min(*read));
        }
        if let Some(entry) = entries.last() {
            let moment = entry.timestamp.clone();
            let same = entries.iter().rev();
            let same = same.take_while(|entry| entry.timestamp == moment).count();
            let before = match &self.last {
                Some((last, read)) if *last == moment => *read,
                _ => 0,
            };
            self.last = Some((moment, before + same));
        }
        Ok(entries)
    }
}

fn parse(moment: &str) -> Result<SystemTime, ClientError> {
    let wrong = |_| ClientError::Protocol(format!("`{}` is no moment", harmless(moment)));
    let moment: jiff::Timestamp = moment.parse().map_err(wrong)?;
    Ok(moment.into())
}

fn show(entry: &SandboxLogEntry, json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string(entry)?);
        return Ok(());
    }
    let fields: String = entry
        .fields
        .iter()
        .map(|(name, value)| format!(" {name}={value}"))
        .collect();
    let text = format!("{:5} {}{fields}", entry.level.to_uppercase(), entry.message);
    println!("{} {}", harmless(&entry.timestamp), harmless(&text));
    Ok(())
}
