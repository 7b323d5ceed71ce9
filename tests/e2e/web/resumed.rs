//! Streams of events that break and are opened again with `Last-Event-ID`.

use serde_json::{Value, json};

use super::echo_with;
use crate::harness::{Bus, Events, HttpClient, Web, request};

/// What one stream keeps of what it has sent.
const KEPT_BYTES: usize = 4 << 20;

/// A bus whose agent answers in many pieces of this length.
fn bus_with_pieces(count: usize, bytes: usize) -> Bus {
    let mut config = echo_with(json!({ "listen": "http://127.0.0.1:0" }));
    let (count, bytes) = (count.to_string(), bytes.to_string());
    config["pools"][0]["args"] = json!(["agent", "echo", "--chunks", count, "--chunk-bytes", bytes]);
    Bus::start(config)
}

/// The events of a turn with their ids, from here to its answer under this id.
fn rest_of_turn(events: &mut Events, id: u32) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    loop {
        let message = events.receives().expect("the turn goes on");
        let is_last = message["id"] == id;
        all.push((events.last_event.clone(), message));
        if is_last {
            return all;
        }
    }
}

#[test]
fn a_stream_that_is_cut_again_and_again_loses_nothing_and_doubles_nothing() {
    const PIECES: usize = 600;
    let bus = bus_with_pieces(PIECES, 2000);
    let web = Web::of(&bus);
    let client = HttpClient::new(&web, &web.token("control"));
    let mut connection = client.stream(None);
    let session = client.opens_session(&mut connection);
    let mut events = client.stream(Some(&session));
    client.prompts(2, &session, "Hello.");
    let mut all: Vec<(String, Value)> = Vec::new();
    let mut cuts = 0;
    while all.last().is_none_or(|(_, message)| message["id"] != 2) {
        let message = events.receives().expect("the turn goes on");
        all.push((events.last_event.clone(), message));
        if all.len() % 50 == 7 {
            cuts += 1;
            // Every other time the door still believes that somebody reads the old stream.
            let lost = events;
            if cuts % 2 == 0 {
                drop(lost);
                events = resumed(&client, &session, &all);
            } else {
                events = resumed(&client, &session, &all);
                drop(lost);
            }
        }
    }
    assert!(cuts > 5, "{cuts}");
    // All of it once more, and the events are the same to the last byte.
    let mut again = client.try_stream_after(Some(&session), Some("0")).expect("a stream");
    assert_eq!(rest_of_turn(&mut again, 2), all);
    let ids: Vec<u64> = all.iter().map(|(id, _)| id.parse().expect("a number")).collect();
    assert!(ids.is_sorted_by(|one, other| one < other), "{ids:?}");
    // An agent without an interruption says as much.
    client.prompts(3, &session, "Hello.");
    let whole = rest_of_turn(&mut again, 3);
    let said = |turn: &[(String, Value)]| -> Vec<Value> {
        let updates = turn.iter().map(|(_, message)| &message["params"]["update"]);
        updates.filter(|update| update["sessionUpdate"] == "agent_message_chunk").cloned().collect()
    };
    assert_eq!(said(&all), said(&whole));
    assert_eq!(said(&whole).len(), PIECES);
}

fn resumed(client: &HttpClient<'_>, session: &str, all: &[(String, Value)]) -> Events {
    let last = &all.last().expect("some came").0;
    client.try_stream_after(Some(session), Some(last)).expect("the stream goes on")
}

#[test]
fn what_was_sent_too_long_ago_is_refused_and_never_left_out_in_silence() {
    const BYTES: usize = 100_000;
    let bus = bus_with_pieces(2 * KEPT_BYTES / BYTES, BYTES);
    let web = Web::of(&bus);
    let client = HttpClient::new(&web, &web.token("control"));
    let mut connection = client.stream(None);
    let session = client.opens_session(&mut connection);
    let mut events = client.stream(Some(&session));
    client.prompts(2, &session, "x");
    let all = rest_of_turn(&mut events, 2);
    drop(events);
    let after = |id: &str| client.try_stream_after(Some(&session), Some(id));
    for gone in ["0", &all[0].0, "x", "-1", "18446744073709551616", &connection.last_event] {
        assert_eq!(after(gone).err(), Some(409), "{gone}");
    }
    // The newest megabytes are there, and come again.
    let place = all.len() - 3 * KEPT_BYTES / 4 / BYTES;
    let mut events = after(&all[place].0).expect("a stream");
    assert_eq!(rest_of_turn(&mut events, 2), all[place + 1..]);
    // Who was refused opens the stream without it, and hears what is new.
    drop(events);
    let mut fresh = None;
    bus.until("the stream that was left is closed", || {
        fresh = client.try_stream(Some(&session)).ok();
        fresh.is_some()
    });
    assert_eq!(client.posts(&request(9, "session/close", json!({})), Some(&session)).status, 202);
    assert_eq!(fresh.expect("a stream").receives().expect("an answer")["id"], 9);
}

#[test]
fn the_stream_of_the_connection_is_resumed_too() {
    let bus = super::bus_with_door();
    let web = Web::of(&bus);
    let client = HttpClient::new(&web, &web.token("control"));
    let mut connection = client.stream(None);
    let session = client.opens_session(&mut connection);
    let opened = connection.last_event.clone();
    // This client opens no stream for its session: it is told here.
    client.prompts(2, &session, "Hello.");
    assert_eq!(connection.turn(2).0, "Hello.");
    let mut again = client.try_stream_after(None, Some(&opened)).expect("a stream");
    assert_eq!(again.turn(2).0, "Hello.");
    assert!(connection.receives().is_none(), "the stream that was replaced ends");
    assert_eq!(client.try_stream(None).err(), Some(409), "it is open");
}
