//! gzip, in both directions, and who gets it.

use std::io;
use std::pin::Pin;

use async_compression::Level;
use async_compression::tokio::bufread::{GzipDecoder, GzipEncoder};
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use futures_util::Stream;
use tokio_util::io::{ReaderStream, StreamReader};

use super::{FileError, GATHERED_BYTES};

/// Bytes on their way.
pub(super) type ByteStream = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// How a body is coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    /// As it is.
    Identity,
    /// gzip.
    Gzip,
}

/// Highest weight of a coding.
const WEIGHT_MAX: u32 = 1000;

/// What is left of a download's choice of coding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Accepted {
    gzip: u32,
    identity: u32,
}

impl Accepted {
    /// Reads `Accept-Encoding`.
    ///
    /// A client that names gzip and nothing else asks for it. One that lists
    /// several codings merely says what it can undo, as E2B's SDKs do with
    /// `gzip, deflate`; it gets the bytes as they are, because the way to a
    /// sandbox is faster than a compressor.
    pub(super) fn from_headers(headers: &HeaderMap) -> Self {
        let (mut gzip, mut identity, mut any, mut others) = (None, None, None, false);
        for value in headers.get_all(header::ACCEPT_ENCODING) {
            for item in value.to_str().unwrap_or_default().split(',') {
                let (coding, weight) = weighted(item);
                match coding.as_str() {
                    "" => {}
                    "gzip" | "x-gzip" => gzip = Some(weight),
                    "identity" => identity = Some(weight),
                    "*" => any = Some(weight),
                    _ => others = true,
                }
            }
        }
        let unsaid = if gzip.is_some() && !others {
            WEIGHT_MAX / 2
        } else {
            WEIGHT_MAX
        };
        Self {
            gzip: gzip.or(any).unwrap_or(0),
            identity: identity.or(any).unwrap_or(unsaid),
        }
    }

    /// The coding of a whole file.
    pub(super) fn best(self) -> Result<Coding, FileError> {
        match self {
            Self {
                gzip: 0,
                identity: 0,
            } => Err(FileError::NotAcceptable),
            Self { gzip, identity } if gzip > identity => Ok(Coding::Gzip),
            Self { .. } => Ok(Coding::Identity),
        }
    }

    /// The coding for a client that wants a range: ranges count bytes of the
    /// file, so they come as they are wherever that is acceptable at all.
    pub(super) fn best_for_range(self) -> Result<Coding, FileError> {
        if self.identity > 0 {
            Ok(Coding::Identity)
        } else {
            self.best()
        }
    }
}

/// A coding in lower case and its weight in thousandths. A weight that is
/// none is not there.
fn weighted(item: &str) -> (String, u32) {
    let mut parts = item.split(';').map(str::trim);
    let coding = parts.next().unwrap_or_default().to_ascii_lowercase();
    let weight = parts
        .filter_map(|parameter| parameter.split_once('='))
        .find(|(name, _)| name.trim().eq_ignore_ascii_case("q"))
        .and_then(|(_, value)| thousandths(value.trim()));
    (coding, weight.unwrap_or(WEIGHT_MAX))
}

fn thousandths(text: &str) -> Option<u32> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_weight = matches!(whole, "0" | "1")
        && fraction.len() <= 3
        && fraction.bytes().all(|byte| byte.is_ascii_digit());
    if !is_weight {
        return None;
    }
    let fraction: u32 = format!("{fraction:0<3}").parse().ok()?;
    Some((whole.parse::<u32>().ok()? * WEIGHT_MAX + fraction).min(WEIGHT_MAX))
}

/// The coding of an upload.
pub(super) fn of_upload(headers: &HeaderMap) -> Result<Coding, FileError> {
    let mut coding = Coding::Identity;
    for value in headers.get_all(header::CONTENT_ENCODING) {
        let text = value.to_str().unwrap_or("?").trim().to_ascii_lowercase();
        coding = match (coding, text.as_str()) {
            (coding, "" | "identity") => coding,
            (Coding::Identity, "gzip" | "x-gzip") => Coding::Gzip,
            (Coding::Identity | Coding::Gzip, _) => {
                return Err(FileError::Request(format!(
                    "unsupported content encoding `{text}`, supported are `identity` and `gzip`"
                )));
            }
        };
    }
    Ok(coding)
}

/// The bytes of an upload. They come in pieces of bounded size, however well
/// they were compressed.
pub(super) fn decode(
    coding: Coding,
    body: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> ByteStream {
    match coding {
        Coding::Identity => Box::pin(body),
        Coding::Gzip => {
            let mut decoder = GzipDecoder::new(StreamReader::new(Box::pin(body)));
            decoder.multiple_members(true);
            Box::pin(ReaderStream::with_capacity(decoder, GATHERED_BYTES))
        }
    }
}

/// The bytes of a download.
pub(super) fn encode(coding: Coding, bytes: ByteStream) -> ByteStream {
    match coding {
        Coding::Identity => bytes,
        Coding::Gzip => {
            let encoder = GzipEncoder::with_quality(StreamReader::new(bytes), Level::Fastest);
            Box::pin(ReaderStream::with_capacity(encoder, GATHERED_BYTES))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_for_those_who_prefer_it() {
        let best = |value: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(value) = value {
                headers.insert(header::ACCEPT_ENCODING, value.parse().unwrap());
            }
            let accepted = Accepted::from_headers(&headers);
            (accepted.best().ok(), accepted.best_for_range().ok())
        };
        let (gzip, identity) = (Some(Coding::Gzip), Some(Coding::Identity));
        assert_eq!(best(None), (identity, identity));
        for (value, expected) in [
            ("", (identity, identity)),
            ("gzip", (gzip, identity)),
            ("GZIP;Q=1.0", (gzip, identity)),
            ("x-gzip", (gzip, identity)),
            ("gzip, deflate", (identity, identity)),
            ("gzip, deflate, br, zstd", (identity, identity)),
            ("deflate", (identity, identity)),
            ("*", (identity, identity)),
            ("identity", (identity, identity)),
            ("gzip;q=0", (identity, identity)),
            ("gzip;q=0.5", (identity, identity)),
            ("gzip;q=0.501", (gzip, identity)),
            ("gzip;q=0.8, identity;q=0.7", (gzip, identity)),
            ("gzip;q=0.7, identity;q=0.8", (identity, identity)),
            ("gzip, *;q=0.1", (gzip, identity)),
            ("gzip, deflate, identity;q=0", (gzip, gzip)),
            ("identity;q=0, *", (gzip, gzip)),
            ("gzip;q=nonsense", (gzip, identity)),
            ("identity;q=0", (None, None)),
            ("*;q=0", (None, None)),
            ("gzip;q=0, *;q=0.000", (None, None)),
            ("br, identity;q=0", (None, None)),
        ] {
            assert_eq!(best(Some(value)), expected, "{value}");
        }
    }

    #[test]
    fn an_upload_comes_plain_or_in_gzip() {
        let coding = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::CONTENT_ENCODING, value.parse().unwrap());
            }
            of_upload(&headers).ok()
        };
        assert_eq!(coding(&[]), Some(Coding::Identity));
        assert_eq!(coding(&["identity"]), Some(Coding::Identity));
        assert_eq!(coding(&["GZip"]), Some(Coding::Gzip));
        for refused in [&["br"][..], &["gzip, gzip"], &["gzip", "gzip"], &["gzip;x"]] {
            assert_eq!(coding(refused), None, "{refused:?}");
        }
    }
}
