//! What was said before, over HTTP: listed, searched, read page by page, exported and deleted.

use serde_json::{Value, json};

use super::echo_with;
use crate::harness::{Bus, Client, Web};

/// A bus with a door that keeps what is said, and a session of the echo agent in which these words were said.
fn with_words(words: &[&str]) -> (Bus, Client) {
    let mut config = echo_with(json!({ "listen": "http://127.0.0.1:0" }));
    config["history"] = json!({ "folder": "@dir/history" });
    let bus = Bus::start(config);
    let mut client = bus.client();
    bus.until("the history is written", || client.status()["history"]["state"] == "up");
    client.asks(1, "initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} }));
    let opened = client.asks(2, "session/new", json!({ "cwd": "/srv/shop", "mcpServers": [] }));
    for words in words {
        client.takes_turn(3, opened["sessionId"].as_str().unwrap(), words);
    }
    (bus, client)
}

#[test]
fn it_is_listed_searched_read_exported_and_deleted() {
    let hostile = "<script>alert(1)</script> \u{202e}linker";
    let (bus, mut client) = with_words(&["fix the build", hostile, "third"]);
    let web = Web::of(&bus);
    let bearer = |scope: &str| format!("Authorization: Bearer {}", web.token(scope));
    let (observer, controller) = (bearer("observe"), bearer("control"));
    let get = |path: &str| web.http("GET", path, &[&observer], "");
    let read = |path: &str| {
        let answer = get(path);
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")), "{path}");
        serde_json::from_str::<Value>(&answer.body).unwrap()
    };
    let mut listed = json!(null);
    bus.until("all is on disk", || {
        listed = read("/history");
        listed["sessions"][0]["prompts"] == 3
    });
    let row = &listed["sessions"][0];
    let id = row["id"].as_str().unwrap().to_owned();
    assert_eq!(
        (&row["state"], &row["label"], &row["title"]),
        (&json!("open"), &json!("s1"), &json!("fix the build"))
    );
    assert_eq!((&row["pool"], &row["folder"]), (&json!("echo"), &json!("/srv/shop")));
    for (query, count) in [
        ("query=linker", 1),
        ("query=alert+script", 1),
        ("query=zebra", 0),
        ("query=third&pool=other", 0),
        ("folder=%2Fsrv", 1),
        ("folder=%2Fsr", 0),
        ("before=2020-01-01", 0),
        ("query=%22%2a%28", 0),
    ] {
        let found = read(&format!("/history?{query}"));
        assert_eq!(found["sessions"].as_array().unwrap().len(), count, "{query}: {found}");
    }
    let place = read("/history?query=linker")["sessions"][0]["found"][0]["text"].clone();
    assert!(place.as_str().unwrap().contains("\u{2}linker\u{3}"), "{place}");
    // Page by page there is everything once.
    let (mut entries, mut from, mut pages) = (Vec::new(), Some(0), 0);
    while let Some(at) = from {
        let page = read(&format!("/history/{id}?from={at}&limit=2"));
        assert_eq!(page["session"]["id"], json!(id));
        entries.extend(page["entries"].as_array().unwrap().clone());
        (from, pages) = (page["next"].as_u64(), pages + 1);
    }
    assert_eq!(read(&format!("/history/{}", &id[..6]))["entries"].as_array().unwrap(), &entries);
    assert!(pages > 2 && entries.len() > 6, "{pages} pages, {} entries", entries.len());
    let html = get(&format!("/history/{id}?format=html"));
    assert_eq!(html.header("content-disposition"), Some(&*format!("attachment; filename=\"{id}.html\"")));
    assert!(html.header("content-security-policy").unwrap().starts_with("sandbox"));
    assert!(html.body.contains("fix the build") && !html.body.contains("<script"));
    assert_eq!(get(&format!("/history/{id}?format=exe")).status, 400);
    for (method, path, headers, status) in [
        ("GET", "/history", &[][..], 401),
        ("GET", "/history/0000", &[&*observer][..], 404),
        ("GET", "/history/..%2f..%2fetc%2fpasswd", &[&*observer][..], 404),
        ("POST", "/history", &[&*controller][..], 405),
        ("DELETE", &*format!("/history/{id}"), &[&*observer][..], 403),
        ("DELETE", &*format!("/history/{id}"), &[&*controller][..], 409),
        ("DELETE", &*format!("/history/{}", &id[..6]), &[&*controller][..], 404),
    ] {
        assert_eq!(web.http(method, path, headers, "").status, status, "{method} {path}");
    }
    client.asks(4, "_bus/close", json!({ "session": "s1" }));
    bus.until("it is past", || read("/history")["sessions"][0]["closed"] == true);
    assert_eq!(read("/history")["sessions"][0]["state"], "past");
    bus.until("it is deleted", || {
        web.http("DELETE", &format!("/history/{id}"), &[&controller], "").status == 204
    });
    assert_eq!(read("/history")["sessions"], json!([]));
    assert_eq!(get(&format!("/history/{id}")).status, 404);
}

#[test]
fn where_nothing_is_kept_there_is_nothing() {
    let mut config = echo_with(json!({ "listen": "http://127.0.0.1:0" }));
    config["history"] = false.into();
    let bus = Bus::start(config);
    let web = Web::of(&bus);
    let bearer = format!("Authorization: Bearer {}", web.token("observe"));
    let answer = web.http("GET", "/history?query=x", &[&bearer], "");
    assert_eq!((answer.status, answer.body.as_str()), (200, r#"{"sessions":[],"next":null}"#));
    assert_eq!(web.http("GET", "/history/abc", &[&bearer], "").status, 404);
}
