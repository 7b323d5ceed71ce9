//! Stories of the streams of a connection: messages go in, events come out.

use super::*;

const START: Moment = Moment::ZERO;

fn push(outboxes: &mut Outboxes, line: &str, now: Moment) -> StreamName {
    outboxes.push(Bytes::copy_from_slice(line.as_bytes()), line, now)
}

fn update(session: &str) -> String {
    format!(r#"{{"method":"session/update","params":{{"sessionId":"{session}"}}}}"#)
}

fn name(session: &str) -> StreamName {
    Some(session.into())
}

fn open(outboxes: &mut Outboxes, name: &StreamName) -> Opening {
    outboxes.open(name, None, START).unwrap()
}

/// What waits on a stream, or has to be sent again: the numbers of its events, and their messages.
fn events(outboxes: &mut Outboxes, name: &StreamName, opening: Opening) -> Vec<(u64, String)> {
    let next = || match outboxes.pop(name, opening) {
        Next::Event(event) => Some(event),
        Next::Nothing => None,
        Next::Replaced => panic!("replaced"),
    };
    let parts = |event: Bytes| {
        let text = str::from_utf8(&event).unwrap().strip_prefix("id: ").unwrap();
        let (number, data) = text.split_once("\ndata: ").unwrap();
        (number.parse().unwrap(), data.strip_suffix("\n\n").unwrap().to_owned())
    };
    std::iter::from_fn(next).map(parts).collect()
}

fn lines(outboxes: &mut Outboxes, name: &StreamName, opening: Opening) -> Vec<String> {
    events(outboxes, name, opening).into_iter().map(|(_, line)| line).collect()
}

/// A connection whose stream is open, and a session of it.
fn opened() -> (Outboxes, Opening) {
    let mut outboxes = Outboxes::default();
    let connection = open(&mut outboxes, &None);
    assert!(outboxes.note_call("1", None));
    assert_eq!(push(&mut outboxes, r#"{"id":1,"result":{"sessionId":"s"}}"#, START), None);
    (outboxes, connection)
}

/// The same, with the stream of the session open, which has sent three messages.
fn in_a_turn() -> (Outboxes, Opening, Opening) {
    let (mut outboxes, connection) = opened();
    let session = open(&mut outboxes, &name("s"));
    for number in 0..3 {
        push(&mut outboxes, &numbered(number), START);
    }
    assert_eq!(lines(&mut outboxes, &name("s"), session).len(), 3);
    (outboxes, connection, session)
}

fn numbered(number: usize) -> String {
    update("s").replacen('{', &format!(r#"{{"number":{number},"#), 1)
}

#[test]
fn an_event_has_a_number_and_one_line() {
    assert_eq!(event(7, b"{\r\"a\":\r1,\"b\":\"\\r\"}"), "id: 7\ndata: { \"a\": 1,\"b\":\"\\r\"}\n\n");
}

#[test]
fn the_messages_of_a_new_session_wait_for_its_stream() {
    let (mut outboxes, _) = opened();
    assert_eq!(push(&mut outboxes, &update("s"), START), name("s"));
    assert!(outboxes.has_waiting());
    let session = open(&mut outboxes, &name("s"));
    assert_eq!(outboxes.open(&name("s"), None, START), Err(NoStream::OpenAlready));
    assert_eq!(lines(&mut outboxes, &name("s"), session), [update("s")]);
    assert!(outboxes.note_call("2", Some("s")));
    assert_eq!(push(&mut outboxes, r#"{"id":2,"result":{"stopReason":"end_turn"}}"#, START), name("s"));
    assert_eq!(push(&mut outboxes, &update("s"), START), name("s"));
}

#[test]
fn a_session_without_a_stream_speaks_on_that_of_the_connection() {
    let (mut outboxes, connection) = opened();
    push(&mut outboxes, &update("s"), START);
    assert!(!outboxes.release(START));
    assert!(outboxes.release(GRACE) && !outboxes.has_waiting());
    assert_eq!(push(&mut outboxes, &update("s"), GRACE), None);
    // A session that was loaded is not waited for.
    outboxes.note_call("\"l\"", Some("old"));
    assert_eq!(push(&mut outboxes, &update("old"), START), None);
    assert_eq!(push(&mut outboxes, r#"{"id":"l","result":null}"#, START), None);
    assert_eq!((lines(&mut outboxes, &None, connection).len(), outboxes.bytes()), (5, 0));
}

#[test]
fn what_has_waited_for_a_stream_comes_before_what_need_not_wait() {
    let (mut outboxes, connection) = opened();
    lines(&mut outboxes, &None, connection);
    assert_eq!(push(&mut outboxes, &numbered(0), START), name("s"));
    assert_eq!(push(&mut outboxes, &numbered(1), START), name("s"));
    // The time is over, and `release` was not called yet.
    assert_eq!(push(&mut outboxes, &numbered(2), GRACE), None);
    assert_eq!(lines(&mut outboxes, &None, connection), [numbered(0), numbered(1), numbered(2)]);
    // It is the same after a stream that broke, and with the answer that ends a turn.
    let session = open(&mut outboxes, &name("s"));
    outboxes.close(&name("s"), session, GRACE);
    assert_eq!(push(&mut outboxes, &numbered(3), GRACE), name("s"));
    outboxes.note_call("2", Some("s"));
    let answer = r#"{"id":2,"result":{}}"#;
    assert_eq!(push(&mut outboxes, answer, 2 * GRACE), None);
    assert_eq!(lines(&mut outboxes, &None, connection), [&numbered(3), answer]);
    assert_eq!(outboxes.bytes(), 0);
}

#[test]
fn a_stream_that_is_open_before_the_load_gets_its_replay_and_its_answer() {
    let (mut outboxes, _) = opened();
    open(&mut outboxes, &name("old"));
    outboxes.note_call("2", Some("old"));
    assert_eq!(push(&mut outboxes, &update("old"), START), name("old"));
    assert_eq!(push(&mut outboxes, r#"{"id":2,"result":{}}"#, START), name("old"));
    assert!(outboxes.sessions["old"].is_confirmed);
}

#[test]
fn a_stream_that_breaks_can_be_opened_again_and_misses_nothing() {
    let (mut outboxes, _) = opened();
    let session = open(&mut outboxes, &name("s"));
    outboxes.close(&name("s"), session, START);
    assert_eq!(push(&mut outboxes, &update("s"), GRACE / 2), name("s"));
    let session = open(&mut outboxes, &name("s"));
    assert_eq!(lines(&mut outboxes, &name("s"), session), [update("s")]);
}

#[test]
fn a_client_that_comes_back_gets_again_what_was_sent_and_then_what_waits() {
    let (mut outboxes, _, session) = in_a_turn();
    outboxes.close(&name("s"), session, START);
    push(&mut outboxes, &numbered(3), START);
    let all = outboxes.open(&name("s"), Some(0), START).unwrap();
    let first = events(&mut outboxes, &name("s"), all);
    assert_eq!(first.iter().map(|(_, line)| line.clone()).collect::<Vec<_>>(), [0, 1, 2, 3].map(numbered));
    // It comes back although its stream seems to be open, and to the same events.
    let had = first[1].0;
    let again = outboxes.open(&name("s"), Some(had), START).unwrap();
    assert_eq!(outboxes.pop(&name("s"), all), Next::Replaced);
    assert_eq!(events(&mut outboxes, &name("s"), again), first[2..]);
    // The stream that was replaced closes late.
    outboxes.close(&name("s"), all, START);
    assert!(outboxes.is_open_as(&name("s"), again));
    push(&mut outboxes, &numbered(4), START);
    assert_eq!(lines(&mut outboxes, &name("s"), again), [numbered(4)]);
}

#[test]
fn an_event_of_another_stream_or_of_none_is_refused() {
    let (mut outboxes, connection, session) = in_a_turn();
    let of_connection = events(&mut outboxes, &None, connection)[0].0;
    for had in [of_connection, u64::MAX] {
        assert_eq!(outboxes.open(&name("s"), Some(had), START), Err(NoStream::Forgotten));
    }
    assert_eq!(outboxes.open(&name("new"), Some(1), START), Err(NoStream::Forgotten));
    assert!(!outboxes.sessions.contains_key("new"));
    assert!(outboxes.is_open_as(&name("s"), session), "who is refused changes nothing");
}

#[test]
fn what_came_on_another_stream_since_is_not_overtaken() {
    let (mut outboxes, connection, session) = in_a_turn();
    outboxes.close(&name("s"), session, START);
    assert_eq!(push(&mut outboxes, &numbered(3), GRACE), None);
    assert_eq!(lines(&mut outboxes, &None, connection).last(), Some(&numbered(3)));
    assert_eq!(outboxes.open(&name("s"), Some(0), GRACE), Err(NoStream::Forgotten));
    let newest = outboxes.sessions["s"].outbox.sent.newest();
    let session = outboxes.open(&name("s"), Some(newest), GRACE).unwrap();
    assert!(lines(&mut outboxes, &name("s"), session).is_empty());
    outboxes.close(&name("s"), session, GRACE);
    assert!(outboxes.open(&name("s"), Some(0), GRACE).is_ok(), "nothing has gone astray since");
}

#[test]
fn a_client_that_lost_all_of_its_streams_finds_everything_where_it_was() {
    let (mut outboxes, connection, session) = in_a_turn();
    outboxes.close(&name("s"), session, START);
    outboxes.close(&None, connection, START);
    push(&mut outboxes, &numbered(3), 2 * GRACE);
    assert!(!outboxes.release(3 * GRACE));
    let connection = outboxes.open(&None, Some(0), 3 * GRACE).unwrap();
    assert_eq!(lines(&mut outboxes, &None, connection).len(), 1, "the answer that opened the session");
    assert!(!outboxes.release(3 * GRACE));
    let session = outboxes.open(&name("s"), Some(0), 3 * GRACE).unwrap();
    assert_eq!(lines(&mut outboxes, &name("s"), session), [0, 1, 2, 3].map(numbered));
    // One that does not come back for the session is told there.
    outboxes.close(&name("s"), session, 3 * GRACE);
    push(&mut outboxes, &numbered(4), 3 * GRACE);
    assert!(outboxes.release(4 * GRACE));
}

#[test]
fn what_was_sent_is_kept_within_bounds_and_counted() {
    let of_door = Rc::new(Cell::new(0));
    let mut outboxes = Outboxes::new(of_door.clone());
    let long =
        |session: &str| update(session).replacen('{', &format!(r#"{{"x":"{}","#, "x".repeat(1 << 20)), 1);
    let mut send = |session: &str| {
        let name = name(session);
        if !outboxes.sessions.contains_key(session) {
            open(&mut outboxes, &name);
        }
        push(&mut outboxes, &long(session), START);
        let opening = outboxes.sessions[session].outbox.opening.unwrap();
        let number = events(&mut outboxes, &name, opening)[0].0;
        let kept = |session: &str| outboxes.sessions[session].outbox.sent.bytes();
        (number, kept(session), kept("s0"), outboxes.sent_bytes)
    };
    let numbers: Vec<u64> = (0..6).map(|_| send("s0").0).collect();
    assert!(send("s0").1 <= STREAM_BYTES && send("s0").1 > STREAM_BYTES / 2);
    // The oldest of all streams of the connection go first.
    for session in 1..8 {
        for _ in 0..6 {
            let (_, _, _, all) = send(&format!("s{session}"));
            assert!(all <= CONNECTION_BYTES);
        }
    }
    let (_, kept, of_first, all) = send("s7");
    assert!(kept > STREAM_BYTES / 2 && of_first == 0 && all > CONNECTION_BYTES / 2);
    assert_eq!(of_door.get(), all);
    assert_eq!(outboxes.open(&name("s0"), Some(numbers[0]), START), Err(NoStream::Forgotten));
    // When the door has no room, nothing more is kept.
    of_door.set(of_door.get() + DOOR_BYTES);
    push(&mut outboxes, &update("s7"), START);
    let opening = outboxes.sessions["s7"].outbox.opening.unwrap();
    assert_eq!(lines(&mut outboxes, &name("s7"), opening), [update("s7")]);
    assert_eq!((outboxes.sent_bytes, of_door.get()), (0, DOOR_BYTES));
    push(&mut outboxes, &update("s7"), START);
    drop(outboxes);
    assert_eq!(of_door.get(), DOOR_BYTES);
}

#[test]
fn streams_of_unknown_sessions_and_calls_have_a_bound() {
    let mut outboxes = Outboxes::default();
    let streams: Vec<_> =
        (0..UNCONFIRMED_MAX).map(|number| open(&mut outboxes, &name(&format!("u{number}")))).collect();
    assert_eq!(outboxes.open(&name("more"), None, START), Err(NoStream::Unknown));
    outboxes.close(&name("u0"), streams[0], START);
    assert!(outboxes.open(&name("more"), None, START).is_ok());
    for id in 0..CALLS_MAX {
        assert!(outboxes.note_call(&id.to_string(), None));
    }
    assert!(!outboxes.note_call("x", None));
}

#[test]
fn what_is_about_no_session_goes_to_the_connection() {
    let (mut outboxes, _) = opened();
    for line in [r#"{"method":"_auth/status","params":{}}"#, r#"{"id":9,"result":{}}"#, "{", "[]"] {
        assert_eq!(push(&mut outboxes, line, START), None);
    }
    assert_eq!(push(&mut outboxes, &update("unheard"), START), None);
}
