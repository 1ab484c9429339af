//! Which headers of a service's answer reach the client.

use http::response::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

use super::hop;

/// The head of an answer as the client gets it.
pub(super) fn passed(mut head: Parts, method: &Method, authority: Option<&HeaderValue>) -> Parts {
    hop::remove(&mut head.headers);
    // The length of what follows is counted anew; where nothing follows, it is
    // part of the answer.
    let tells_a_length = method == Method::HEAD || head.status == StatusCode::NOT_MODIFIED;
    if !tells_a_length {
        head.headers.remove(header::CONTENT_LENGTH);
    }
    keep_own_cookies(&mut head.headers, authority);
    head.extensions = http::Extensions::new();
    head
}

/// Cookies for more than the service's own host would go to other sandboxes,
/// and to the control plane, under the same domain.
fn keep_own_cookies(headers: &mut HeaderMap, authority: Option<&HeaderValue>) {
    let host = authority
        .and_then(|value| value.to_str().ok())
        .unwrap_or("");
    let host = host.rsplit_once(':').map_or(host, |(host, _port)| host);
    let is_own = |cookie: &HeaderValue| {
        let text = String::from_utf8_lossy(cookie.as_bytes()).to_ascii_lowercase();
        text.split(';')
            .skip(1)
            .all(|attribute| match attribute.split_once('=') {
                Some((name, domain)) if name.trim() == "domain" => {
                    let domain = domain.trim().trim_start_matches('.');
                    domain.is_empty() || domain == host.to_ascii_lowercase()
                }
                _ => true,
            })
    };
    let cookies: Vec<HeaderValue> = headers
        .get_all(header::SET_COOKIE)
        .iter()
        .cloned()
        .collect();
    if cookies.iter().all(&is_own) {
        return;
    }
    headers.remove(header::SET_COOKIE);
    for cookie in cookies.into_iter().filter(is_own) {
        headers.append(header::SET_COOKIE, cookie);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use http::Response;

    use super::*;

    fn cookies_after(cookies: &[&'static str]) -> Vec<String> {
        let mut response = Response::new(());
        for cookie in cookies {
            response
                .headers_mut()
                .append(header::SET_COOKIE, HeaderValue::from_static(cookie));
        }
        let authority = HeaderValue::from_static("3000-i1.my.zone:7300");
        let head = passed(response.into_parts().0, &Method::GET, Some(&authority));
        let left = head.headers.get_all(header::SET_COOKIE).iter();
        left.map(|value| value.to_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn cookies_stay_with_the_service() {
        let own = [
            "a=1",
            "b=domain=x; Path=/",
            "c=2; Domain=3000-i1.MY.zone; Secure",
        ];
        assert_eq!(cookies_after(&own), own);
        let foreign = [
            "d=1; Domain=my.zone",
            "e=1;path=/;DOMAIN = .my.zone",
            "f=1; domain=zone",
        ];
        assert_eq!(cookies_after(&[&own[..], &foreign].concat()), own);
    }
}
