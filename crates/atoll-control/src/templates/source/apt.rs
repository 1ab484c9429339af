//! The host's own package mirrors, without what others added to them.
//!
//! Nothing here names a mirror: entries come from `/etc/apt`, in both formats
//! it knows, and those of the distribution itself are kept. They are told
//! from others by suite (`<codename>`, `-updates`, `-security`) and keyring.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// One entry of the host's sources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AptEntry {
    pub(crate) uris: Vec<String>,
    pub(crate) suites: Vec<String>,
    pub(crate) components: Vec<String>,
    /// `Signed-By` and whatever else stands beside, by lower-case name.
    pub(crate) options: BTreeMap<String, String>,
}

/// The distribution of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Release {
    /// `debian`, `ubuntu`, …
    pub(crate) id: String,
    /// `bookworm`, `noble`, …
    pub(crate) codename: String,
}

impl Release {
    /// Reads the text of `/etc/os-release`; `None` when it names no release of packages.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let value = |wanted: &str| {
            text.lines().find_map(|line| {
                let (key, value) = line.split_once('=')?;
                (key.trim() == wanted).then(|| value.trim().trim_matches(['"', '\'']).to_owned())
            })
        };
        let codename = value("VERSION_CODENAME").filter(|name| !name.is_empty())?;
        Some(Self {
            id: value("ID")?,
            codename,
        })
    }
}

/// Options of an entry that are worth keeping; the others select what to
/// download on the host and mean nothing for the image.
const KEPT_OPTIONS: [&str; 3] = ["signed-by", "trusted", "check-valid-until"];

impl AptEntry {
    /// As one deb822 stanza. `shown` decides how an address is written.
    fn stanza(&self, shown: fn(&str) -> String) -> String {
        let uris: Vec<_> = self.uris.iter().map(|uri| shown(uri)).collect();
        let mut text = format!(
            "Types: deb\nURIs: {}\nSuites: {}\nComponents: {}\n",
            uris.join(" "),
            self.suites.join(" "),
            self.components.join(" ")
        );
        for (name, value) in &self.options {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{}: {value}", canonical(name));
        }
        text
    }

    fn is_signed_by(&self, id: &str) -> bool {
        self.options
            .get("signed-by")
            .is_none_or(|keyring| keyring.contains(&format!("{id}-archive")))
    }
}

/// Entries as the text of a `.sources` file, with addresses as they are.
pub(crate) fn sources_file(entries: &[AptEntry]) -> String {
    entries
        .iter()
        .map(|entry| entry.stanza(str::to_owned))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The same without user names and passwords in addresses, fit for an image.
pub(crate) fn public_sources_file(entries: &[AptEntry]) -> String {
    entries
        .iter()
        .map(|entry| entry.stanza(without_credentials))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Keyring files that the entries need.
pub(crate) fn keyrings(entries: &[AptEntry]) -> Vec<String> {
    let named = entries
        .iter()
        .filter_map(|entry| entry.options.get("signed-by"));
    let mut files: Vec<_> = named
        .filter(|value| value.starts_with('/') && !value.contains(['\n', ' ']))
        .cloned()
        .collect();
    files.sort();
    files.dedup();
    files
}

/// All entries below `/etc/apt` that are the distribution's own.
pub(crate) fn read_entries(etc_apt: &Path, release: &Release) -> Vec<AptEntry> {
    let mut entries = Vec::new();
    if let Ok(text) = fs::read_to_string(etc_apt.join("sources.list")) {
        entries.extend(parse_one_line(&text));
    }
    let mut files: Vec<_> = fs::read_dir(etc_apt.join("sources.list.d"))
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    files.sort();
    for file in files {
        let Ok(text) = fs::read_to_string(&file) else {
            continue;
        };
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("list") => entries.extend(parse_one_line(&text)),
            Some("sources") => entries.extend(parse_deb822(&text)),
            _ => {}
        }
    }
    own_entries(&entries, release)
}

/// Keeps the entries of the distribution. One that is signed by the
/// distribution wins over others of the same suites; a mirror that signs by
/// itself is taken only where there is no such entry.
fn own_entries(entries: &[AptEntry], release: &Release) -> Vec<AptEntry> {
    let suites = [
        release.codename.clone(),
        format!("{}-updates", release.codename),
        format!("{}-security", release.codename),
        format!("{}/updates", release.codename),
    ];
    let mut kept: Vec<AptEntry> = entries
        .iter()
        .filter_map(|entry| {
            let mut entry = entry.clone();
            entry.suites.retain(|suite| suites.contains(suite));
            entry.uris.retain(|uri| {
                ["http:", "https:", "file:", "mirror+"]
                    .iter()
                    .any(|scheme| uri.starts_with(scheme))
            });
            entry
                .options
                .retain(|name, _| KEPT_OPTIONS.contains(&name.as_str()));
            let has_main = entry.components.iter().any(|component| component == "main");
            (has_main && !entry.suites.is_empty() && !entry.uris.is_empty()).then_some(entry)
        })
        .collect();
    if kept
        .iter()
        .any(|entry| entry.is_signed_by(&release.id) && entry.suites.contains(&release.codename))
    {
        kept.retain(|entry| entry.is_signed_by(&release.id));
    }
    kept
}

/// Reads `deb [options] uri suite components…` lines.
fn parse_one_line(text: &str) -> Vec<AptEntry> {
    text.lines().filter_map(one_line).collect()
}

fn one_line(line: &str) -> Option<AptEntry> {
    let line = line.split('#').next()?.trim().strip_prefix("deb")?;
    if !line.starts_with([' ', '\t', '[']) {
        return None;
    }
    let mut rest = line.trim_start();
    let mut options = BTreeMap::new();
    if let Some(bracketed) = rest.strip_prefix('[') {
        let (inside, after) = bracketed.split_once(']')?;
        for option in inside.split_whitespace() {
            let (name, value) = option.split_once('=')?;
            options.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        rest = after;
    }
    let mut words = rest.split_whitespace().map(str::to_owned);
    let (uri, suite) = (words.next()?, words.next()?);
    Some(AptEntry {
        uris: vec![uri],
        suites: vec![suite],
        components: words.collect(),
        options,
    })
}

/// Reads the stanzas of a `.sources` file.
fn parse_deb822(text: &str) -> Vec<AptEntry> {
    let mut entries = Vec::new();
    let mut fields: BTreeMap<String, String> = BTreeMap::new();
    let mut last = None::<String>;
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            entries.extend(stanza_entry(std::mem::take(&mut fields)));
            last = None;
        } else if line.starts_with([' ', '\t']) {
            if let Some(value) = last.as_ref().and_then(|name| fields.get_mut(name)) {
                value.push('\n');
                value.push_str(line);
            }
        } else if let Some((name, value)) = line.split_once(':') {
            let name = name.trim().to_ascii_lowercase();
            fields.insert(name.clone(), value.trim().to_owned());
            last = Some(name);
        }
    }
    entries
}

fn stanza_entry(mut fields: BTreeMap<String, String>) -> Option<AptEntry> {
    let mut words = |name: &str| -> Vec<String> {
        fields
            .remove(name)
            .unwrap_or_default()
            .split_whitespace()
            .map(str::to_owned)
            .collect()
    };
    let types = words("types");
    let enabled = words("enabled");
    let entry = AptEntry {
        uris: words("uris"),
        suites: words("suites"),
        components: words("components"),
        options: fields,
    };
    let off = enabled
        .first()
        .is_some_and(|value| ["no", "false", "0", "off"].contains(&value.as_str()));
    (types.iter().any(|kind| kind == "deb") && !off).then_some(entry)
}

fn canonical(option: &str) -> String {
    let parts = option.split('-').map(|part| {
        let mut letters = part.chars();
        letters
            .next()
            .map(|first| first.to_ascii_uppercase().to_string() + letters.as_str())
            .unwrap_or_default()
    });
    parts.collect::<Vec<_>>().join("-")
}

/// An address without its user and password.
fn without_credentials(uri: &str) -> String {
    let Some((scheme, rest)) = uri.split_once("://") else {
        return uri.to_owned();
    };
    let end = rest.find('/').unwrap_or(rest.len());
    let host = rest[..end].rfind('@').map_or(0, |at| at + 1);
    format!("{scheme}://{}", &rest[host..])
}

/// Lines of `apt-config dump` that say how to reach mirrors.
pub(crate) fn acquire_settings(dump: &str) -> Vec<String> {
    let wanted = [
        "Acquire::http",
        "Acquire::https",
        "Acquire::Check-Valid-Until",
        "Acquire::Max-ValidTime",
        "Acquire::Retries",
        "Acquire::ForceIPv4",
        "Acquire::ForceIPv6",
        "Acquire::AllowInsecureRepositories",
    ];
    let is_wanted = |line: &&str| {
        let (key, value) = line.split_once(' ').unwrap_or((line, ""));
        let known = wanted
            .iter()
            .any(|prefix| key == *prefix || key.starts_with(&format!("{prefix}::")));
        known && value != "\"\";"
    };
    dump.lines().filter(is_wanted).map(str::to_owned).collect()
}

/// Of those, what an image keeps: nothing about proxies and credentials.
pub(crate) fn public_settings(settings: &[String]) -> Vec<String> {
    let kept = [
        "Acquire::Check-Valid-Until ",
        "Acquire::Retries ",
        "Acquire::ForceIPv4 ",
        "Acquire::ForceIPv6 ",
    ];
    settings
        .iter()
        .filter(|line| kept.iter().any(|key| line.starts_with(key)))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bookworm() -> Release {
        Release {
            id: "debian".to_owned(),
            codename: "bookworm".to_owned(),
        }
    }

    #[test]
    fn keeps_what_is_the_distributions_own() {
        let home = tempfile::tempdir().unwrap();
        let parts = home.path().join("sources.list.d");
        fs::create_dir(&parts).unwrap();
        fs::write(
            home.path().join("sources.list"),
            "# deb http://off.example bookworm main\n\
             deb http://user:secret@mirror.example/debian bookworm main contrib # ours\n\
             deb-src http://mirror.example/debian bookworm main\n\
             deb [arch=amd64 signed-by=/k/vendor.gpg] https://vendor.example bookworm main\n\
             deb cdrom:[Debian]/ bookworm main\n",
        )
        .unwrap();
        fs::write(
            parts.join("debian.sources"),
            "Types: deb deb-src\n# a comment\nURIs: https://mirror.example/debian-security\n\
             Suites: bookworm-security bookworm-backports\nComponents: main\nArchitectures: amd64\n\
             Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n\
             Types: deb\nEnabled: no\nURIs: http://off.example\nSuites: bookworm\nComponents: main\n\n\
             Types: deb\nURIs: http://node.example\nSuites: nodistro\nComponents: main\n",
        )
        .unwrap();
        fs::write(
            parts.join("x.list.disabled"),
            "deb http://off.example bookworm main\n",
        )
        .unwrap();
        let entries = read_entries(home.path(), &bookworm());
        assert_eq!(
            sources_file(&entries),
            "Types: deb\nURIs: http://user:secret@mirror.example/debian\nSuites: bookworm\nComponents: main contrib\n\n\
             Types: deb\nURIs: https://mirror.example/debian-security\nSuites: bookworm-security\nComponents: main\n\
             Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
        );
        assert!(public_sources_file(&entries).contains("URIs: http://mirror.example/debian\n"));
        assert_eq!(
            keyrings(&entries),
            ["/usr/share/keyrings/debian-archive-keyring.gpg"]
        );
    }

    #[test]
    fn a_mirror_with_its_own_key_is_taken_when_it_is_the_only_one() {
        let text =
            "deb [signed-by=/k/company.gpg] https://apt.company.example/debian bookworm main\n";
        assert_eq!(own_entries(&parse_one_line(text), &bookworm()).len(), 1);
    }

    #[test]
    fn inline_keys_survive() {
        let text = "Types: deb\nURIs: http://m.example\nSuites: bookworm\nComponents: main\nSigned-By:\n -----BEGIN\n .\n abc\n";
        let written = sources_file(&parse_deb822(text));
        assert!(
            written.ends_with("Signed-By: \n -----BEGIN\n .\n abc\n"),
            "{written}"
        );
    }

    #[test]
    fn settings_for_the_way_are_taken_and_secrets_stay() {
        let dump = "APT \"\";\nAcquire::http \"\";\nAcquire::http::Proxy \"http://u:p@proxy:3128\";\n\
                    Acquire::Check-Valid-Until \"false\";\nAcquire::Languages \"none\";\n";
        let settings = acquire_settings(dump);
        assert_eq!(
            settings,
            [
                "Acquire::http::Proxy \"http://u:p@proxy:3128\";",
                "Acquire::Check-Valid-Until \"false\";"
            ]
        );
        assert_eq!(
            public_settings(&settings),
            ["Acquire::Check-Valid-Until \"false\";"]
        );
    }

    #[test]
    fn the_release_comes_from_os_release() {
        assert_eq!(
            Release::parse("ID=debian\nVERSION_CODENAME=\"bookworm\"\n"),
            Some(bookworm())
        );
        assert_eq!(Release::parse("ID=fedora\nVERSION_CODENAME=\"\"\n"), None);
    }
}
