//! A request of a browser: the little of HTTP that the page needs.

use std::io::{self, BufRead, Read};

/// The longest request line with all headers.
const LONGEST: u64 = 16 << 10;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    Page,
    Data,
}

/// Why a request is refused: status and sentence.
pub(super) type Refusal = (&'static str, &'static str);

/// Reads a request. Only GET, and only of a name of loopback: a page from elsewhere whose name was rebound to 127.0.0.1 sends its
/// own name.
pub(super) fn read(from: impl Read) -> io::Result<Result<Request, Refusal>> {
    let mut lines = io::BufReader::new(from).take(LONGEST);
    let mut line = || -> io::Result<String> {
        let mut bytes = Vec::new();
        lines.read_until(b'\n', &mut bytes)?;
        if bytes.last() != Some(&b'\n') {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
    };
    let first = line()?;
    let mut hosts = Vec::new();
    loop {
        let header = line()?;
        if header.is_empty() {
            break;
        }
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("host")
        {
            hosts.push(value.trim().to_owned());
        }
    }
    let mut words = first.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    Ok(match hosts.as_slice() {
        _ if method != "GET" => Err(("405 Method Not Allowed", "only GET is possible")),
        [host] if is_loopback(host) => match target.split(['?', '#']).next() {
            Some("/") => Ok(Request::Page),
            Some("/data.json") => Ok(Request::Data),
            _ => Err(("404 Not Found", "the page is at /")),
        },
        _ => Err(("403 Forbidden", "open the page by 127.0.0.1 or localhost")),
    })
}

/// Returns whether a Host header names this machine's loopback, at any port: a tunnel may have another one.
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    name == "127.0.0.1" || name == "[::1]" || name.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn of(text: &str) -> Result<Request, Refusal> {
        read(text.as_bytes()).unwrap()
    }

    #[test]
    fn only_get_of_a_loopback_name_is_answered() {
        assert_eq!(of("GET / HTTP/1.1\r\nHost: 127.0.0.1:8470\r\n\r\n"), Ok(Request::Page));
        assert_eq!(
            of("GET /data.json?1 HTTP/1.1\r\nhost: LOCALHOST:9\r\nAccept: */*\r\n\r\n"),
            Ok(Request::Data)
        );
        assert_eq!(of("GET / HTTP/1.1\nHost: [::1]:8470\n\n"), Ok(Request::Page));
        let status = |text: &str| of(text).unwrap_err().0.split(' ').next().unwrap().to_owned();
        for host in [
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil:80",
            "",
            "evil@127.0.0.1",
            "127.0.0.1:80x",
        ] {
            assert_eq!(status(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")), "403", "{host}");
        }
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), "403");
        assert_eq!(status("GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"), "403");
        assert_eq!(status("POST / HTTP/1.1\r\nHost: localhost\r\n\r\n"), "405");
        assert_eq!(status("GET /../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n"), "404");
    }

    #[test]
    fn a_request_without_end_is_an_error() {
        assert!(read(&b"GET / HTTP/1.1\r\nHost: localhost"[..]).is_err());
        let long = format!("GET / HTTP/1.1\r\n{}", "a: b\r\n".repeat(10_000));
        assert!(read(long.as_bytes()).is_err());
    }
}
