//! Ids and bytes: each client gets its own answer under its own id, and nothing else in a line changes.

use serde_json::json;

use crate::harness::{Bus, bus_puppet_client, one_pool, request, result};

#[test]
fn six_clients_with_the_same_id_each_get_their_own_answer() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let mut clients: Vec<_> = (0..6).map(|_| bus.client()).collect();
    let mut asked = Vec::new();
    for (at, client) in clients.iter_mut().enumerate() {
        client.sends(&request(1, "work", json!({ "who": at })));
        asked.push(puppet.is_asked("work"));
    }
    for question in asked.iter().rev() {
        puppet.answers(question, json!({ "you": question["params"]["who"] }));
    }
    for (at, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.gets(1), json!({ "you": at }));
        client.has_received_nothing();
    }
}

#[test]
fn every_spelling_of_an_id_comes_back_byte_for_byte() {
    let (_bus, mut puppet, mut client) = bus_puppet_client();
    let ids = [
        "1",
        "0",
        "-0",
        "-1",
        "1.0",
        "1e2",
        "1E+2",
        "9007199254740993",
        "18446744073709551616",
        "0.1e-7",
        r#""1""#,
        r#""""#,
        r#""\u0041""#,
        r#""A""#,
        r#""a\"b\\c\/d""#,
        r#""žluťoučký 🐎""#,
        r#""null""#,
    ];
    let mut asked = Vec::new();
    for id in ids {
        client.sends(&request(id, "work", json!({})));
        let question = puppet.is_asked("work");
        let bus_id = question["id"].as_u64().expect("a whole number, whatever the client's id is");
        assert!(bus_id < 1 << 53, "a JavaScript agent could not hand {bus_id} back");
        asked.push((id, question));
    }
    for (id, question) in asked.iter().rev() {
        puppet.answers(question, json!({}));
        assert_eq!(client.reads(), result(id, json!({})));
    }
    client.has_received_nothing();
}

#[test]
fn nothing_but_the_id_is_changed_on_the_way() {
    let (_bus, mut puppet, mut client) = bus_puppet_client();
    let lines = [
        r#"{"params":{"b":1,"a":2},"method":"odd","id":@,"jsonrpc":"2.0"}"#,
        "{ \"jsonrpc\" : \"2.0\" ,\t\"id\":  @ ,\"method\":\"odd\" , \"params\" : [ 1 , 2.50 , 1E+2, -0 ] } ",
        r#"{"jsonrpc":"2.0","id":@,"method":"odd","params":{"x":"\u00e9\/\ud83d\ude00\n","é":"é","":null}}"#,
        r#"{"jsonrpc":"2.0","id":@,"method":"odd","params":{"id":5,"method":"m","deep":{"sessionId":"s","id":6}}}"#,
        r#"{"jsonrpc":"2.0","id":@,"method":"odd","params":{"n":12345678901234567890.0123456789,"_meta":{"k":[]}}}"#,
        r#"{"jsonrpc":"2.0","unknown":{"id":7},"id":@,"method":"odd","more":"\"id\":8","params":{}}"#,
    ];
    for line in lines {
        client.sends(&line.replace('@', r#""mine""#));
        let received = puppet.reads();
        let bus_id = serde_json::from_str::<serde_json::Value>(&received).expect("JSON")["id"].to_string();
        assert_eq!(received, line.replace('@', &bus_id));
        let answer = line.replace(r#""method":"odd""#, r#""result":{"id":1,"sessionId2":[2.50,"\u0041"]}"#);
        puppet.sends(&answer.replace('@', &bus_id));
        assert_eq!(client.reads(), answer.replace('@', r#""mine""#));
    }
}

#[test]
fn crlf_and_blank_lines_are_ignored() {
    let (_bus, mut puppet, mut client) = bus_puppet_client();
    client.sends_bytes(b"\r\n\n  \n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"work\"}\r\n\r\n");
    let received = puppet.reads();
    assert!(received.starts_with('{') && received.ends_with('}'), "{received:?}");
    let bus_id = serde_json::from_str::<serde_json::Value>(&received).expect("JSON")["id"].clone();
    puppet.sends_bytes(format!("\r\n\n{}\r\n", result(bus_id, json!("ok"))).as_bytes());
    assert_eq!(client.reads(), result(1, json!("ok")));
}

#[test]
fn lines_of_eight_megabytes_are_forwarded_unchanged() {
    let (_bus, mut puppet, mut client) = bus_puppet_client();
    let text = r#"8 MB of \"text\" \u00e9 "#.repeat(8 << 20 >> 4);
    assert!(text.len() > 8 << 20);
    client.sends(&format!(r#"{{"jsonrpc":"2.0","method":"big","params":{{"text":"{text}"}},"id":1}}"#));
    let received = puppet.reads();
    let (before, id) = received.rsplit_once(':').expect("an id at the end");
    assert!(before == format!(r#"{{"jsonrpc":"2.0","method":"big","params":{{"text":"{text}"}},"id""#));
    let bus_id = id.trim_end_matches('}');
    puppet.sends(&format!(r#"{{"result":"{text}","jsonrpc":"2.0","id":{bus_id}}}"#));
    assert!(client.reads() == format!(r#"{{"result":"{text}","jsonrpc":"2.0","id":1}}"#));
}

#[test]
fn bytes_may_come_one_at_a_time() {
    let (_bus, mut puppet, mut client) = bus_puppet_client();
    let line = request(r#""é""#, "work", json!({ "text": "žluťoučký" }));
    for byte in format!("{line}\r\n").bytes() {
        client.sends_bytes(&[byte]);
    }
    let asked = puppet.is_asked("work");
    assert_eq!(asked["params"]["text"], "žluťoučký");
    for byte in format!("{}\n", result(&asked["id"], json!("kůň"))).bytes() {
        puppet.sends_bytes(&[byte]);
    }
    assert_eq!(client.reads(), result(r#""é""#, json!("kůň")));
}
