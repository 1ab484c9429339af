//! Every way to say where a request goes, and every way to say it twice.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use super::*;

const ID: &str = "i0123456789abcdefghij";

fn names() -> Names {
    Names::default().with_domain("My.Zone").unwrap()
}

fn ask(target: &str, headers: &[(&str, &str)]) -> Result<Routed, Misdirected> {
    let mut request = Request::get(target).body(()).unwrap();
    for (name, value) in headers {
        let name: http::HeaderName = name.parse().unwrap();
        request
            .headers_mut()
            .append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    route(&names(), &mut request)
}

fn to(target: &str, headers: &[(&str, &str)]) -> Destination {
    ask(target, headers).unwrap().destination
}

fn on(host: &str) -> Destination {
    to("/x", &[("host", host)])
}

fn sandbox(port: u16) -> Destination {
    Destination::Sandbox {
        id: ID.to_owned(),
        port,
    }
}

#[test]
fn a_host_names_a_port_of_a_sandbox() {
    for host in [
        format!("3000-{ID}.my.zone"),
        format!("3000-{ID}.MY.zone:7300"),
        format!("3000-{ID}.my.zone.").to_uppercase(),
        format!("3000-{ID}.localhost:7300"),
        format!("3000-{ID}-6532622b.my.zone"),
        format!("3000-{ID}.127-0-0-1.sslip.example:7300"),
    ] {
        assert_eq!(on(&host), sandbox(3000), "{host}");
    }
}

#[test]
fn other_hosts_are_the_control_planes() {
    for host in [
        "api.my.zone",
        "my.zone",
        "localhost:7300",
        "127.0.0.1:7300",
        "[::1]:7300",
        "elsewhere.example",
        "127-0-0-1.sslip.example",
        "sandbox.my.zone",
    ] {
        assert_eq!(on(host), Destination::Control, "{host}");
        let signed = to("/files?path=a", &[("host", host)]);
        assert_eq!(signed, Destination::SignedFile, "{host}");
    }
    for target in ["/files/", "/files/compose", "/Files", "//files", "/%66iles"] {
        assert_eq!(to(target, &[("host", "localhost")]), Destination::Control);
    }
}

#[test]
fn headers_name_a_sandbox_on_shared_hosts() {
    let headers = |host| {
        [
            ("host", host),
            ("e2b-sandbox-id", ID),
            ("e2b-sandbox-port", "49983"),
        ]
    };
    for host in [
        "localhost",
        "atoll:7300",
        "127.0.0.1:7300",
        "[::1]",
        "sandbox.my.zone",
        "my.zone",
    ] {
        assert_eq!(to("/files", &headers(host)), sandbox(49983), "{host}");
    }
    for host in ["api.my.zone", "elsewhere.example", "x.localhost"] {
        assert!(
            matches!(ask("/x", &headers(host)), Err(Misdirected::NotHere(_))),
            "{host}"
        );
    }
    // A page of one sandbox must not reach another.
    let own = format!("3000-{ID}.my.zone");
    let others = [
        ("host", own.as_str()),
        ("e2b-sandbox-id", "i99999999999999999999"),
        ("e2b-sandbox-port", "49983"),
    ];
    assert_eq!(to("/x", &others), sandbox(3000));
}

#[test]
fn half_a_name_is_none() {
    let host = ("host", "localhost");
    let (id, port) = (("e2b-sandbox-id", ID), ("e2b-sandbox-port", "1"));
    for headers in [
        &[host, id][..],
        &[host, port],
        &[host, id, id, port],
        &[host, id, port, port],
    ] {
        assert_eq!(ask("/x", headers), Err(Misdirected::HalfNamed));
    }
    for other in ["", "I0", "../x", "i_1", "i 1", "ü", "i1/..", "-"] {
        let headers = [host, ("e2b-sandbox-id", other), port];
        assert_eq!(ask("/x", &headers), Err(Misdirected::Id), "{other:?}");
    }
    for other in [
        "", "0", "65536", "-1", "+49983", "049983", " 1", "1 ", "0x1", "1e1", "१",
    ] {
        let headers = [host, id, ("e2b-sandbox-port", other)];
        assert_eq!(ask("/x", &headers), Err(Misdirected::Port), "{other:?}");
    }
    assert_eq!(
        ask("/x", &[("host", "0-i1.my.zone")]),
        Err(Misdirected::Port)
    );
    assert_eq!(ask("/x", &[("host", "1-.my.zone")]), Err(Misdirected::Id));
}

#[test]
fn one_request_has_one_host() {
    let sandbox_host = format!("3000-{ID}.my.zone");
    assert_eq!(
        ask("/x", &[("host", "localhost"), ("host", &sandbox_host)]),
        Err(Misdirected::TwoHosts)
    );
    let absolute = format!("http://{sandbox_host}/x?y");
    assert_eq!(
        ask(&absolute, &[("host", "localhost")]),
        Err(Misdirected::TwoHosts)
    );
    let mut request = Request::get(&absolute).body(()).unwrap();
    let routed = route(&names(), &mut request).unwrap();
    assert_eq!(routed.destination, sandbox(3000));
    assert_eq!(routed.authority.unwrap(), sandbox_host.as_str());
    assert_eq!(request.uri(), "/x?y");
    assert_eq!(ask("/x", &[]), Err(Misdirected::NoHost));
    let mut old = Request::get("/x")
        .version(Version::HTTP_10)
        .body(())
        .unwrap();
    let routed = route(&names(), &mut old).unwrap();
    assert_eq!(routed.destination, Destination::Control);
}

#[test]
fn hosts_that_are_none_are_refused() {
    for host in [
        "",
        ":80",
        "a b",
        "a/b",
        "user@localhost",
        "localhost:",
        "localhost:80:80",
        "localhost:x",
        "[::1",
        "[::1]80",
        "[localhost]",
        "..%2f",
        "a\tb",
    ] {
        let asked = ask("/x", &[("host", host)]);
        assert_eq!(asked, Err(Misdirected::Host), "{host:?}");
    }
}

#[test]
fn bodies_are_chunked_or_have_a_length() {
    let host = ("host", "localhost");
    for codings in [
        &["gzip, chunked"][..],
        &["chunked, chunked"],
        &["chunked", "chunked"],
        &["identity", "chunked"],
        &["chunked;q=1"],
    ] {
        let mut headers = vec![host];
        headers.extend(codings.iter().map(|coding| ("transfer-encoding", *coding)));
        assert_eq!(
            ask("/x", &headers),
            Err(Misdirected::TransferCoding),
            "{codings:?}"
        );
    }
    assert!(ask("/x", &[host, ("transfer-encoding", "Chunked")]).is_ok());
}

#[test]
fn nobody_gets_a_tunnel() {
    let mut request = Request::connect("localhost:49983").body(()).unwrap();
    assert_eq!(route(&names(), &mut request), Err(Misdirected::Connect));
}

#[test]
fn domains_are_names() {
    for domain in ["localhost", "a.b-c.d", "127-0-0-1.sslip.example"] {
        assert!(Names::default().with_domain(domain).is_ok(), "{domain}");
    }
    for domain in ["", ".", "a..b", "*.a", "a:80", "-a.b", "127.0.0.1", "a b"] {
        assert!(Names::default().with_domain(domain).is_err(), "{domain}");
    }
}
