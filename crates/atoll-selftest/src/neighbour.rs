//! What the neighbour says it owns. It is said inside of a sandbox, so it is
//! read by name and type, and only told to programs in other sandboxes.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Bytes of a path or name of the neighbour's; those of `neighbour.py` are much shorter.
const TEXT_BYTES: usize = 128;

/// The things of `attacks/neighbour.py`, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Belongings {
    n_file: Text,
    n_shared: Text,
    n_comm: Text,
    n_key: u32,
    n_queue: Text,
    n_locked: Text,
    n_opened: Text,
    n_abstract: Text,
    n_port: u16,
    n_length: u32,
}

/// A short plain text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
struct Text(String);

impl TryFrom<String> for Text {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let is_plain = text.len() <= TEXT_BYTES && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_plain
            .then_some(Self(text))
            .ok_or("not a short plain text")
    }
}

impl Belongings {
    pub(crate) fn read(said: &str) -> Result<Self, String> {
        serde_json::from_str(said).map_err(|error| format!("what it says it owns: {error}"))
    }

    /// As programs get them.
    pub(crate) fn target(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(target)) => target,
            // Strings and numbers by name are an object.
            _ => Map::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn honest() -> Value {
        json!({
            "n_file": "/tmp/neighbour-secret", "n_shared": "/dev/shm/neighbour-secret",
            "n_comm": "neighbour", "n_key": 0x4154_4F4C_u32, "n_queue": "neighbour-queue",
            "n_locked": "/etc/os-release", "n_opened": "/etc/debian_version",
            "n_abstract": "neighbour-0123", "n_port": 40_000, "n_length": 32,
        })
    }

    #[test]
    fn a_neighbour_can_only_name_what_is_its_own() {
        let read = Belongings::read(&honest().to_string()).unwrap();
        assert_eq!(Value::Object(read.target()), honest());
        for (name, lie) in [
            // Where programs on the host would write.
            ("scratch", json!("/etc/shadow")),
            ("file", json!("/etc/shadow")),
            ("pid", json!(1)),
            ("n_more", json!("unknown")),
            ("n_port", json!(70_000)),
            ("n_port", json!("80")),
            ("n_key", json!(-1)),
            ("n_file", json!({"a": "path"})),
            ("n_file", json!("a\u{1b}[2J")),
            ("n_file", json!("x".repeat(1000))),
        ] {
            let mut said = honest();
            said[name] = lie.clone();
            let read = Belongings::read(&said.to_string());
            assert!(read.is_err(), "{name} = {lie}: {read:?}");
        }
    }
}
