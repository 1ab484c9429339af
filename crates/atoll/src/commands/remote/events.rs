//! `atoll events`: what happened to sandboxes, and what happens.

use std::process::ExitCode;
use std::time::Duration;

use atoll_client::{Client, ClientError, EventNews, EventOptions, SandboxEvent};

use super::server;
use crate::arguments::remote::EventsArguments;
use crate::home::Home;
use crate::terminal::harmless;

/// Pause before a stream that broke is opened again, after the first failure and at most.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);

pub(crate) async fn events(home: &Home, arguments: &EventsArguments) -> anyhow::Result<ExitCode> {
    let client = server(home)?;
    let options = EventOptions {
        sandbox: arguments.sandbox.clone(),
        kinds: arguments.kind.clone(),
    };
    let mut last = None;
    for event in client.latest_events(&options, arguments.last).await? {
        last = Some(event.id);
        show(&event, arguments.json)?;
    }
    if !arguments.follow {
        return Ok(ExitCode::SUCCESS);
    }
    let mut reader = Reader {
        client: &client,
        options: &options,
        // Without one yet: what came between the look and the stream counts too.
        last: last.unwrap_or(0),
        json: arguments.json,
    };
    tokio::select! {
        error = reader.follow() => Err(error),
        _ = tokio::signal::ctrl_c() => Ok(ExitCode::SUCCESS),
    }
}

/// Follows events across connections, each event once.
struct Reader<'a> {
    client: &'a Client,
    options: &'a EventOptions,
    last: i64,
    json: bool,
}

impl Reader<'_> {
    /// Goes on for ever, and says why if it cannot.
    async fn follow(&mut self) -> anyhow::Error {
        let mut pause = PAUSE_FIRST;
        loop {
            let before = self.last;
            match self.one_stream().await {
                Ok(()) => {}
                Err(Trouble::Server(error)) => match error {
                    ClientError::Unreachable { .. }
                    | ClientError::Timeout(_)
                    | ClientError::Protocol(_) => eprintln!("{error}; trying again"),
                    fatal => return fatal.into(),
                },
                Err(Trouble::Output(error)) => return error,
            }
            pause = if self.last > before {
                PAUSE_FIRST
            } else {
                (pause * 2).min(PAUSE_MAX)
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn one_stream(&mut self) -> Result<(), Trouble> {
        let mut stream = self
            .client
            .follow_events(Some(self.last), self.options)
            .await
            .map_err(Trouble::Server)?;
        while let Some(news) = stream.next().await.map_err(Trouble::Server)? {
            match news {
                EventNews::Event(event) => {
                    show(&event, self.json).map_err(Trouble::Output)?;
                    self.last = event.id;
                }
                // Who has seen none yet misses none.
                EventNews::Gap(_) if self.last == 0 => {}
                EventNews::Gap(forgotten) => {
                    eprintln!("events up to number {forgotten} are not kept any more");
                }
                EventNews::End(reason) => eprintln!("the stream ended: {}", harmless(&reason)),
            }
        }
        Ok(())
    }
}

/// Why a stream is not read on.
enum Trouble {
    Server(ClientError),
    Output(anyhow::Error),
}

fn show(event: &SandboxEvent, json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string(event)?);
        return Ok(());
    }
    let text = |name: &str| {
        let value = event.detail.get(name).and_then(|value| value.as_str());
        value.map(|value| format!(" {name}={value:?}"))
    };
    let shown = [
        "template",
        "reason",
        "snapshot",
        "fork",
        "forked_from",
        "agent_id",
        "task_id",
    ];
    let detail: String = shown.iter().filter_map(|name| text(name)).collect();
    let sandbox = event.sandbox_id.as_deref().unwrap_or("-");
    let line = format!("{} {:11} {sandbox}{detail}", event.timestamp, event.kind);
    println!("{}", harmless(&line));
    Ok(())
}
