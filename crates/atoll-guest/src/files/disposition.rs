//! `Content-Disposition`: file names in headers, in both directions.

use axum::http::HeaderValue;

/// The header of a download.
pub(super) fn inline(path: &str) -> HeaderValue {
    let name = path.rsplit('/').next().unwrap_or_default();
    let text = if !name.is_empty() && name.bytes().all(is_token) {
        format!("inline; filename={name}")
    } else if name.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        let quoted = name.replace('\\', "\\\\").replace('"', "\\\"");
        format!("inline; filename=\"{quoted}\"")
    } else {
        let mut encoded = String::new();
        for byte in name.bytes() {
            if byte.is_ascii_alphanumeric() || b"!#$&+-.^_`|~".contains(&byte) {
                encoded.push(char::from(byte));
            } else {
                encoded.push_str(&format!("%{byte:02X}"));
            }
        }
        format!("inline; filename*=utf-8''{encoded}")
    };
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("inline"))
}

/// What the head of a form's part says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    /// Name of the field.
    pub(super) name: Option<String>,
    /// Name of the file, with its slashes.
    pub(super) file_name: Option<String>,
}

/// Reads the header of a part; `None` when it is broken.
///
/// Not left to the parser of the form: that one reads a name that ends in a
/// backslash wrongly.
pub(super) fn part(header: &str) -> Option<Part> {
    let mut part = Part::default();
    let mut extended = None;
    let mut rest = header.split_once(';').map_or("", |(_, rest)| rest);
    loop {
        rest = rest.trim_start_matches([' ', '\t', ';']);
        if rest.is_empty() {
            part.file_name = extended.or(part.file_name);
            return Some(part);
        }
        let (key, after) = rest.split_once('=')?;
        let (value, after) = value(after.trim_start_matches([' ', '\t']))?;
        rest = after;
        match key.trim().to_ascii_lowercase().as_str() {
            "name" => part.name = Some(value),
            "filename" => part.file_name = Some(value),
            "filename*" => extended = Some(decode(&value)?),
            _ => {}
        }
    }
}

/// A token or a quoted text, and what follows it.
fn value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(';').unwrap_or(text.len());
        return Some((text[..end].trim_end().to_owned(), &text[end..]));
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((index, char)) = chars.next() {
        match char {
            '"' => return Some((value, &quoted[index + 1..])),
            // Browsers once sent `C:\x` unescaped: what needs no backslash has none.
            '\\' => match chars.clone().next() {
                Some((_, escaped @ ('"' | '\\'))) => {
                    value.push(escaped);
                    chars.next();
                }
                Some(_) => value.push('\\'),
                None => return None,
            },
            char => value.push(char),
        }
    }
    None
}

/// `utf-8'language'%XX…`.
fn decode(text: &str) -> Option<String> {
    let (charset, rest) = text.split_once('\'')?;
    let (_, encoded) = rest.split_once('\'')?;
    if !charset.eq_ignore_ascii_case("utf-8") {
        return None;
    }
    let mut bytes = Vec::new();
    let mut rest = encoded.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || char::from(rest.next()?).to_digit(16);
            let (high, low) = (digit()?, digit()?);
            bytes.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_out_as_plainly_as_they_can() {
        for (path, expected) in [
            ("/a/b.txt", "inline; filename=b.txt"),
            ("/a b.txt", "inline; filename=\"a b.txt\""),
            ("/a\"b\\c;d", r#"inline; filename="a\"b\\c;d""#),
            ("/ü b.txt", "inline; filename*=utf-8''%C3%BC%20b.txt"),
            (
                "/a\r\nSet-Cookie: x",
                "inline; filename*=utf-8''a%0D%0ASet-Cookie%3A%20x",
            ),
            ("/", "inline; filename=\"\""),
        ] {
            assert_eq!(inline(path), expected, "{path:?}");
        }
    }

    #[test]
    fn names_come_in_as_they_are() {
        let file = |name: &str| {
            Some(Part {
                name: Some("file".to_owned()),
                file_name: Some(name.to_owned()),
            })
        };
        for (header, expected) in [
            (r#"form-data; name="file"; filename="x/1""#, file("x/1")),
            ("form-data;name=file;filename=a.txt", file("a.txt")),
            (r#"form-data; filename="a;b=c"; name="file""#, file("a;b=c")),
            (r#"form-data; name="file"; filename="a\"b""#, file("a\"b")),
            (r#"form-data; name="file"; filename="a\\""#, file("a\\")),
            (
                r#"form-data; name="file"; filename="C:\x\y""#,
                file(r"C:\x\y"),
            ),
            (r#"form-data; name="file"; filename="%22""#, file("%22")),
            (r#"form-data; name="file"; filename="ü""#, file("ü")),
            (
                r#"form-data; name="file"; filename="x"; filename*=UTF-8'en'%C3%BC%2f1"#,
                file("ü/1"),
            ),
            (r#"form-data; NAME="file"; FileName="a""#, file("a")),
            (r#"form-data; name="file"; filename="""#, file("")),
            (
                r#"form-data; name="file""#,
                Some(Part {
                    name: Some("file".to_owned()),
                    file_name: None,
                }),
            ),
            ("form-data", Some(Part::default())),
            ("", Some(Part::default())),
            (r#"form-data; name="file"#, None),
            (r#"form-data; name="fi\"#, None),
            ("form-data; name", None),
            ("form-data; filename*=latin1''x", None),
            ("form-data; filename*=utf-8''%f", None),
            ("form-data; filename*=utf-8''%ff", None),
        ] {
            assert_eq!(part(header), expected, "{header}");
        }
    }
}
