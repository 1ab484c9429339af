//! A connection to a server of HTTP/1.1, as plain as can be.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// Connects, and sends without delay.
pub fn connect(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A connection that asks the same again and again.
pub struct Connection {
    reader: BufReader<TcpStream>,
    line: String,
}

impl Connection {
    /// On a connection that is open.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Self {
            reader: BufReader::new(stream),
            line: String::new(),
        })
    }

    /// Sends a request and takes its answer, which must be one of success.
    pub fn ask(&mut self, head: &str) -> io::Result<()> {
        self.ask_into(head, &mut io::sink())
    }

    /// The same, and what the answer says.
    pub fn ask_for_text(&mut self, head: &str) -> io::Result<String> {
        let mut body = Vec::new();
        self.ask_into(head, &mut body)?;
        String::from_utf8(body).map_err(io::Error::other)
    }

    fn ask_into(&mut self, head: &str, body: &mut impl io::Write) -> io::Result<()> {
        self.reader.get_mut().write_all(head.as_bytes())?;
        let (mut length, mut is_chunked, mut is_first) = (0, false, true);
        loop {
            self.line.clear();
            self.reader.read_line(&mut self.line)?;
            let line = self.line.trim_end().to_ascii_lowercase();
            if is_first && !line.starts_with("http/1.1 20") {
                return Err(io::Error::other(format!("answered `{line}`")));
            }
            is_first = false;
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse().map_err(io::Error::other)?;
            }
            is_chunked |= line == "transfer-encoding: chunked";
        }
        if !is_chunked {
            return io::copy(&mut self.reader.by_ref().take(length), body).map(drop);
        }
        loop {
            self.line.clear();
            self.reader.read_line(&mut self.line)?;
            let length = u64::from_str_radix(self.line.trim(), 16).map_err(io::Error::other)?;
            io::copy(&mut self.reader.by_ref().take(length), body)?;
            io::copy(&mut self.reader.by_ref().take(2), &mut io::sink())?;
            if length == 0 {
                return Ok(());
            }
        }
    }
}
