//! What an attacker who lands in a sandbox finds out first: the runtime,
//! rights, calls, mounts and files. A report to read, without a verdict.

use crate::Ground;
use crate::case::{Numbers, User};
use crate::program;
use crate::runner::shown;
use crate::stage::{Connection, Stage};

const SURVEY: &str = include_str!("../attacks/survey.py");

/// The survey of a fresh sandbox of each tier, as text.
///
/// # Errors
/// When no sandbox can be made, or it does not answer.
pub async fn survey(ground: &Ground) -> Result<String, String> {
    let mut text = String::new();
    for runtime in &ground.runtimes {
        let stage = Stage {
            runtime: std::sync::Arc::clone(runtime),
            layers: ground.layers.clone(),
            user: ground.user.clone(),
        };
        let actor = stage
            .open(&Numbers::new(), Vec::new(), Connection::None)
            .await
            .map_err(|error| shown(&error.to_string()))?;
        for (user, name) in [(User::Root, "root"), (User::Template, stage.user.as_str())] {
            let program = program::text(SURVEY, &serde_json::Map::new());
            let report = actor.perform(&program, user, "/").await.report();
            let found = report.map(|report| report.got);
            let title = format!("tier {}, as {name}", stage.tier());
            text.push_str(&format!("{title}\n{}\n", "=".repeat(title.len())));
            let found = found.as_deref().unwrap_or_else(|why| why);
            // It comes from inside: nothing of it may move a cursor.
            text.extend(found.chars().map(|character| match character {
                '\n' => '\n',
                other if other.is_control() => ' ',
                other => other,
            }));
            text.push_str("\n\n");
        }
        actor.close().await;
    }
    Ok(text)
}
