//! Who is kept out: other hosts, other origins, whoever has no token.

use super::bus_with_door;
use crate::harness::Web;

#[test]
fn every_path_is_behind_one_gate() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let port = web.host().rsplit_once(':').expect("a port").1.to_owned();
    let own = format!("Host: localhost:{port}");
    let origin = |origin: &str| format!("Origin: {origin}");
    let cases = [
        (vec!["Host: evil.example".to_owned()], 421),
        (vec![format!("Host: evil.example:{port}")], 421),
        (vec!["Host: localhost".to_owned()], 421),
        (vec![own.clone(), own.clone()], 421),
        (vec![own.clone(), origin("http://evil.example")], 403),
        (vec![own.clone(), origin("null")], 403),
        (vec![own.clone(), origin("http://localhost:1")], 403),
        (vec![own.clone(), origin(&format!("http://127.0.0.1:{port}"))], 403),
        (vec![own.clone(), "Sec-Fetch-Site: cross-site".to_owned()], 403),
        (vec![own.clone(), "Sec-Fetch-Site: same-site".to_owned()], 403),
    ];
    for (headers, status) in cases {
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        for path in ["/", "/acp", "/login", "/metrics", "/healthz", "/nothing"] {
            for method in ["GET", "POST", "OPTIONS"] {
                let reply = web.http(method, path, &headers, "");
                assert_eq!(reply.status, status, "{method} {path} {headers:?}");
                assert!(!reply.head.to_lowercase().contains("access-control-"), "{}", reply.head);
            }
        }
    }
    let ours = [own.as_str(), &origin(&format!("http://localhost:{port}")), "Sec-Fetch-Site: same-origin"];
    assert_eq!(web.http("GET", "/", &ours, "").status, 200);
    assert_eq!(web.http("GET", "/", &["Sec-Fetch-Site: none"], "").status, 200);
}

#[test]
fn a_link_on_a_page_of_another_site_opens_the_console_and_nothing_else() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let bearer = format!("Authorization: Bearer {}", web.token("admin"));
    let followed = |method: &str, path: &str, site: &str| {
        let site = format!("Sec-Fetch-Site: {site}");
        let headers = [&site, "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document", &bearer];
        web.http(method, path, &headers, "").status
    };
    for site in ["cross-site", "same-site"] {
        for path in ["/", "/index.html", "/main.js"] {
            assert_eq!(followed("GET", path, site), 200, "{site} {path}");
        }
        for path in ["/acp", "/login", "/push", "/metrics", "/usage", "/history", "/healthz", "/nothing"] {
            assert_eq!(followed("GET", path, site), 403, "{site} {path}");
        }
        for path in ["/", "/acp", "/login"] {
            assert_eq!(followed("POST", path, site), 403, "{site} {path}");
        }
    }
    let framed = ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"];
    assert_eq!(web.http("GET", "/", &framed, "").status, 403);
    let headers = [
        ("Authorization", &bearer["Authorization: ".len()..]),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Mode", "navigate"),
        ("Sec-Fetch-Dest", "document"),
    ];
    assert_eq!(web.try_socket("/acp", &headers).err(), Some(403), "no WebSocket comes of a link");
}

#[test]
fn everything_but_the_pages_and_the_probes_needs_a_token() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    for (method, path, status) in [
        ("GET", "/", 200),
        ("GET", "/healthz", 200),
        ("GET", "/readyz", 200),
        ("GET", "/nothing", 404),
        ("GET", "/../bus.json", 404),
        ("POST", "/", 405),
        ("GET", "/login", 405),
        ("GET", "/acp", 401),
        ("POST", "/acp", 401),
        ("DELETE", "/acp", 401),
        ("GET", "/metrics", 401),
    ] {
        let reply = web.http(method, path, &["Content-Type: application/json"], "");
        assert_eq!(reply.status, status, "{method} {path}");
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(reply.header("referrer-policy"), Some("no-referrer"));
    }
    let wrong = web.http("GET", "/acp", &["Authorization: Bearer wrong"], "");
    assert_eq!((wrong.status, wrong.header("www-authenticate")), (401, Some("Bearer")));
    for headers in [
        vec![],
        vec![("Authorization", "Bearer wrong")],
        vec![("Sec-WebSocket-Protocol", "acp.v1, bearer.wrong")],
    ] {
        assert_eq!(web.try_socket("/acp", &headers).err(), Some(401), "{headers:?}");
    }
    let bearer = format!("Bearer {}", web.token("admin"));
    let foreign = [("Authorization", bearer.as_str()), ("Origin", "http://evil.example")];
    assert_eq!(web.try_socket("/acp", &foreign).err(), Some(403), "a token does not open the gate");
    // Nor is it taken from where a page of another site could put it.
    let cookie = format!("Cookie: token={}", &bearer[7..]);
    assert_eq!(web.http("GET", "/acp", &[&cookie], "").status, 401);
    assert_eq!(web.http("GET", &format!("/acp?token={}", &bearer[7..]), &[], "").status, 401);
}
