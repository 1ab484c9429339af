//! `[[webhook]]` of `config.toml`: who is told what happens.

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use atoll_server::webhooks::{HOOKS_MAX, Hook};
use serde::Deserialize;

use crate::failure::Hinted;

/// One `[[webhook]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WebhookSettings {
    /// Where to.
    url: String,
    /// What requests are signed with: the content of this file,
    secret_file: Option<PathBuf>,
    /// or of this variable of the server's environment.
    secret_variable: Option<String>,
    /// What it is told; everything when empty.
    #[serde(default)]
    kinds: Vec<String>,
}

/// The hooks that are configured. Nothing of a secret, or of an address that may
/// hold one, is in an error.
pub(crate) fn hooks(settings: &[WebhookSettings]) -> anyhow::Result<Vec<Hook>> {
    if settings.len() > HOOKS_MAX {
        return Err(Hinted::error(
            format!(
                "{} webhooks are configured, and {HOOKS_MAX} is the most",
                settings.len()
            ),
            "let one of them pass events on",
        ));
    }
    let mut hooks: Vec<Hook> = Vec::with_capacity(settings.len());
    for (number, one) in (1..).zip(settings) {
        let which = format!("webhook {number} of `config.toml`");
        let hook = Hook::new(&one.url, &secret(one, &which)?, &one.kinds).map_err(|error| {
            Hinted::error(
                format!("{which}: {error}"),
                "docs/events.md says what a webhook needs",
            )
        })?;
        if hooks.iter().any(|other| other.id() == hook.id()) {
            return Err(Hinted::error(
                format!("{which} has the url of another one"),
                "name all kinds in one of them",
            ));
        }
        hooks.push(hook);
    }
    Ok(hooks)
}

fn secret(settings: &WebhookSettings, which: &str) -> anyhow::Result<String> {
    match (&settings.secret_file, &settings.secret_variable) {
        (Some(path), None) => fs::read_to_string(path)
            .with_context(|| format!("{which}: cannot read `{}`", path.display())),
        (None, Some(name)) => std::env::var(name).map_err(|_| {
            Hinted::error(
                format!("{which}: the variable `{name}` is not set"),
                "set it in the environment of the server, or use `secret_file`",
            )
        }),
        _ => Err(Hinted::error(
            format!("{which} has no secret, or two"),
            "give `secret_file` or `secret_variable`, for example secret_file = \"/etc/atoll/webhook.secret\"",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct File {
        webhook: Vec<WebhookSettings>,
    }

    fn read(text: &str) -> Result<Vec<Hook>, String> {
        let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        hooks(&file.webhook).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn a_webhook_has_an_address_and_one_secret() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        fs::write(&path, "correct horse battery staple\n").unwrap();
        let secret = format!("secret_file = {path:?}");
        let one = format!("[[webhook]]\nurl = \"http://h/a\"\n{secret}\nkinds = [\"killed\"]\n");
        assert_eq!(read(&one).unwrap().len(), 1);
        let twice = format!("{one}{one}");
        for (wrong, said) in [
            (twice.as_str(), "has the url of another one"),
            ("[[webhook]]\nurl = \"http://h/a\"\n", "no secret"),
            (
                "[[webhook]]\nurl = \"http://h/a\"\nsecret_variable = \"ATOLL_NOT_SET\"\n",
                "`ATOLL_NOT_SET` is not set",
            ),
            (
                "[[webhook]]\nurl = \"http://h/a\"\nsecret = \"in the clear\"\n",
                "unknown field",
            ),
            (
                &one.replace("killed", "exploded"),
                "no kind of event that is called `exploded`",
            ),
        ] {
            let error = read(wrong).unwrap_err();
            assert!(error.contains(said), "{error}");
            assert!(!error.contains("horse"), "{error}");
        }
    }
}
