//! Plays a file of `exchanges/`, whose README says how it is read.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::wire::{Connection, Frame};

/// The connections of one file, and what placeholders turned out to be.
struct Player {
    address: SocketAddr,
    connections: BTreeMap<String, Connection>,
    pid: Option<u64>,
}

/// One step of a file.
struct Step<'a> {
    is_request: bool,
    name: &'a str,
    condition: Option<(&'a str, u64)>,
    lines: Vec<&'a str>,
}

/// Plays all of `text`, and panics where the guest differs.
pub(crate) fn play(address: SocketAddr, text: &str) {
    let mut player = Player {
        address,
        connections: BTreeMap::new(),
        pid: None,
    };
    let steps = steps(text);
    assert!(
        steps.iter().any(|step| !step.is_request),
        "no answer is expected"
    );
    for step in steps {
        if step.is_request {
            let request = player.request(&step.lines);
            let connection = Connection::send(player.address, &request);
            player.connections.insert(step.name.to_owned(), connection);
        } else if applies(step.condition) {
            player.answer(step.name, &step.lines);
        }
    }
}

fn steps(text: &str) -> Vec<Step<'_>> {
    let mut steps: Vec<Step<'_>> = Vec::new();
    for line in text.lines() {
        let (is_request, title) = match (line.strip_prefix(">>> "), line.strip_prefix("<<< ")) {
            (Some(title), _) => (true, title),
            (None, Some(title)) => (false, title),
            (None, None) => {
                match steps.last_mut() {
                    Some(step) => step.lines.push(line),
                    None => assert!(line.starts_with('#'), "before the first step: {line:?}"),
                }
                continue;
            }
        };
        let words: Vec<&str> = title.split(' ').collect();
        let (name, condition) = match words[..] {
            [name] => (name, None),
            [name, when, seconds] => (name, Some((when, seconds.parse().unwrap()))),
            _ => panic!("not understood: {line:?}"),
        };
        steps.push(Step {
            is_request,
            name,
            condition,
            lines: Vec::new(),
        });
    }
    steps
}

fn applies(condition: Option<(&str, u64)>) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    match condition {
        None => true,
        Some(("before", second)) => now.as_secs() < second,
        Some(("from", second)) => now.as_secs() >= second,
        Some((other, _)) => panic!("not understood: {other:?}"),
    }
}

impl Player {
    /// The bytes of a request.
    fn request(&self, lines: &[&str]) -> Vec<u8> {
        let empty = lines.iter().position(|line| line.is_empty()).unwrap();
        let pid = self.pid.map_or_else(String::new, |pid| pid.to_string());
        let lines: Vec<String> = lines
            .iter()
            .map(|line| line.replace("{pid}", &pid))
            .collect();
        let body_bytes: usize = lines[empty + 1..].iter().map(|line| wire(line).len()).sum();
        let mut bytes = Vec::new();
        for (number, line) in lines.iter().enumerate() {
            let next = lines.get(number + 1).map(|next| wire(next).len() - 2);
            let line = line.replace("{length}", &body_bytes.to_string());
            let line = line.replace("{size}", &format!("{:X}", next.unwrap_or(0)));
            bytes.extend_from_slice(&wire(&line));
        }
        bytes
    }

    /// Reads what a step expects, and compares.
    fn answer(&mut self, name: &str, lines: &[&str]) {
        let mut connection = self.connections.remove(name).expect("there was a request");
        let mut lines = lines.iter().copied().peekable();
        if let Some(status) = lines.peek().and_then(|line| line.strip_prefix("HTTP/1.1 ")) {
            let status: u16 = status.parse().unwrap();
            lines.next();
            let head = connection.head();
            if head.status != status {
                let body = connection.rest();
                let body = String::from_utf8_lossy(&body);
                panic!("{name}: status {status} was expected, got {head:#?}\n{body}");
            }
            for line in lines.by_ref().take_while(|line| !line.is_empty()) {
                let (header, value) = line.split_once(": ").unwrap();
                assert_eq!(head.header(header), Some(value), "{name}: {header}");
            }
        }
        let mut lookahead = None;
        while let Some(line) = lines.next() {
            if let Some(text) = line.strip_prefix("= ") {
                let body = String::from_utf8(connection.rest()).unwrap();
                assert_eq!(body, text, "{name}");
            } else if let Some(json) = line.strip_prefix("any ") {
                let frame = loop {
                    let frame = connection.frame().expect("a frame after those");
                    if !self.is_like(&frame, json) {
                        break frame;
                    }
                };
                lookahead = Some(frame);
            } else if let Some(json) = line.strip_prefix("output ") {
                self.output(name, &mut connection, json);
            } else if let Some((flags, length, json)) = frame_line(line) {
                let frame = lookahead.take().or_else(|| connection.frame());
                let frame = frame.unwrap_or_else(|| panic!("{name}: no frame like {line}"));
                assert_eq!(frame.flags, flags, "{name}: flags of {}", shown(&frame));
                if let Some(length) = length {
                    assert_eq!(frame.payload.len(), length, "{name}: {}", shown(&frame));
                }
                self.compare(name, &parsed(&frame.payload), json);
                if flags & 2 != 0 {
                    assert!(lines.next().is_none(), "nothing follows the last frame");
                    assert!(
                        connection.frame().is_none(),
                        "{name}: a frame after the last"
                    );
                }
            } else {
                let body = connection.rest();
                self.compare(name, &parsed(&body), line);
            }
        }
        self.connections.insert(name.to_owned(), connection);
    }

    /// Reads frames until their output is all of what is expected.
    fn output(&self, name: &str, connection: &mut Connection, json: &str) {
        let mut expected: Value = serde_json::from_str(json).unwrap();
        let (kind, text) = {
            let data = expected["event"]["data"].as_object().unwrap();
            let (kind, text) = data.iter().next().unwrap();
            (kind.clone(), text.as_str().unwrap().to_owned())
        };
        let mut seen = Vec::new();
        while seen.len() < text.len() {
            let frame = connection.frame().expect("a frame with output");
            let value = parsed(&frame.payload);
            let encoded = value["event"]["data"][&kind].as_str().unwrap_or_default();
            expected["event"]["data"][&kind] = encoded.into();
            assert_eq!(value, expected, "{name}");
            seen.extend(decoded(encoded));
        }
        assert_eq!(String::from_utf8(seen).unwrap(), text, "{name}");
    }

    fn compare(&mut self, name: &str, value: &Value, expected: &str) {
        let pattern: Value = serde_json::from_str(expected).unwrap();
        assert!(
            matches(value, &pattern, &mut self.pid),
            "{name}\n     got {value}\nexpected {pattern}"
        );
    }

    fn is_like(&self, frame: &Frame, expected: &str) -> bool {
        let pattern: Value = serde_json::from_str(expected).unwrap();
        frame.flags == 0 && matches(&parsed(&frame.payload), &pattern, &mut self.pid.clone())
    }
}

/// What a line of a request is on the wire.
fn wire(line: &str) -> Vec<u8> {
    let (line, end) = match line.strip_suffix('\\') {
        Some(line) => (line, ""),
        None => (line, "\r\n"),
    };
    let mut bytes = Vec::new();
    if let Some((flags, length, json)) = frame_line(line) {
        assert!(
            length.is_none_or(|length| length == json.len()),
            "wrong length: {line}"
        );
        bytes.push(flags);
        bytes.extend(u32::try_from(json.len()).unwrap().to_be_bytes());
        bytes.extend(json.as_bytes());
    } else {
        bytes.extend(line.as_bytes());
    }
    bytes.extend(end.as_bytes());
    bytes
}

/// Flags, length and content of a line that is a frame.
fn frame_line(line: &str) -> Option<(u8, Option<usize>, &str)> {
    let (flags, rest) = line.split_once(' ')?;
    let (length, json) = rest.split_once(' ')?;
    if flags.len() != 2 || !json.starts_with('{') {
        return None;
    }
    let length = match length {
        "len" => None,
        length => Some(usize::from_str_radix(length, 16).ok()?),
    };
    Some((u8::from_str_radix(flags, 16).ok()?, length, json))
}

/// Whether a value is as expected; learns the pid from the first that has one.
fn matches(value: &Value, pattern: &Value, pid: &mut Option<u64>) -> bool {
    match (value, pattern) {
        (Value::Number(number), Value::String(text)) if text == "{pid}" => number
            .as_u64()
            .is_some_and(|number| *pid.get_or_insert(number) == number),
        (Value::String(value), Value::String(pattern)) => match pattern.split_once("{any}") {
            Some((before, after)) => {
                value.len() >= before.len() + after.len()
                    && value.starts_with(before)
                    && value.ends_with(after)
            }
            None => value == pattern,
        },
        (Value::Array(values), Value::Array(patterns)) => {
            values.len() == patterns.len()
                && std::iter::zip(values, patterns)
                    .all(|(value, pattern)| matches(value, pattern, pid))
        }
        (Value::Object(values), Value::Object(patterns)) => {
            values.len() == patterns.len()
                && patterns.iter().all(|(key, pattern)| {
                    values
                        .get(key)
                        .is_some_and(|value| matches(value, pattern, pid))
                })
        }
        (value, pattern) => value == pattern,
    }
}

fn parsed(json: &[u8]) -> Value {
    let text = String::from_utf8_lossy(json);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text:?}"))
}

fn shown(frame: &Frame) -> String {
    String::from_utf8_lossy(&frame.payload).into_owned()
}

/// Standard base64, without a library for two lines of test.
fn decoded(text: &str) -> Vec<u8> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::new());
    for letter in text.bytes().filter(|letter| *letter != b'=') {
        let value = LETTERS.iter().position(|known| *known == letter).unwrap();
        bits = bits << 6 | u32::try_from(value).unwrap();
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).unwrap());
        }
    }
    bytes
}
