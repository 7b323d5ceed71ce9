//! Tests of the table of calls.

use super::*;
use crate::limit::CALL_INDEX_BITS;

fn link(index: u32) -> Endpoint {
    Endpoint::Client(Link(Key { index, generation: 1 }))
}

fn ids_of(calls: &Calls, endpoint: EndpointId) -> Vec<&[u8]> {
    calls.outgoing_calls(endpoint).map(|(_, call)| call.id.as_bytes()).collect()
}

fn ask(calls: &mut Calls, caller: EndpointId, callee: EndpointId, id: &str) -> CallKey {
    let key = calls.ask(caller, callee, Id::new(id.as_bytes()), Purpose::Ask, None);
    calls.get_mut(key).unwrap().written = Written::At { position: 0, length: 1 };
    key
}

#[test]
fn only_the_callee_can_answer_and_only_once() {
    let mut calls = Calls::default();
    let (ann, ben, worker) =
        (calls.add_endpoint(link(1)), calls.add_endpoint(link(2)), calls.add_endpoint(link(3)));
    let key = ask(&mut calls, ann, worker, "1");
    assert!(calls.answered(key, ben).is_none());
    assert!(calls.answered(key, ann).is_none());
    assert_eq!(calls.answered(key, worker).unwrap().id.as_bytes(), b"1");
    assert!(calls.answered(key, worker).is_none());
    let next = ask(&mut calls, ben, worker, "1");
    assert_eq!(next.0.index, key.key().index);
    assert!(calls.answered(key, worker).is_none(), "an old id does not answer a new call");
}

#[test]
fn a_call_that_was_not_written_has_no_answer() {
    let mut calls = Calls::default();
    let (ann, worker) = (calls.add_endpoint(link(1)), calls.add_endpoint(link(2)));
    let key = calls.ask(ann, worker, Id::new(b"1"), Purpose::Ask, None);
    assert!(calls.answered(key, worker).is_none());
    assert!(calls.get(key).is_some());
}

#[test]
fn wire_ids_are_safe_for_javascript_and_come_back() {
    let key = CallKey(Key { index: (1 << CALL_INDEX_BITS) - 1, generation: u32::MAX });
    assert!(key.wire() < 1 << 53);
    assert_eq!(CallKey::from_wire(key.wire().to_string().as_bytes()), Some(key));
    for wire in [0, 1, 9, 10, 1 << 20, (1 << 52) - 1] {
        let key = CallKey::from_wire(wire.to_string().as_bytes()).unwrap();
        assert_eq!((key.wire(), key.spelled(&mut itoa::Buffer::new())), (wire, wire.to_string().as_bytes()));
    }
    for odd in ["", "01", "-1", "1.0", "1e3", " 1", "1:", "1/", "99999999999999999999"] {
        assert_eq!(CallKey::from_wire(odd.as_bytes()), None, "{odd}");
    }
    assert_eq!(CallKey::from_wire(b"\"5\""), None);
    assert_eq!(CallKey::from_wire(b"9007199254740993"), None);
}

#[test]
fn chains_hold_calls_in_flight_in_order() {
    let mut calls = Calls::default();
    let (ann, one, two) =
        (calls.add_endpoint(link(1)), calls.add_endpoint(link(2)), calls.add_endpoint(link(3)));
    let keys: Vec<_> = ["a", "b", "c", "d"].iter().map(|id| ask(&mut calls, ann, one, id)).collect();
    calls.end(keys[1]);
    assert_eq!(ids_of(&calls, ann), [b"a", b"c", b"d"]);
    calls.reassign(keys[0], two);
    assert_eq!(calls.incoming_calls(one).count(), 2);
    assert_eq!(calls.incoming_calls(two).map(|(key, _)| key).collect::<Vec<_>>(), [keys[0]]);
    calls.adopt(keys[3]);
    assert_eq!(ids_of(&calls, ann), [b"a", b"c"]);
    assert_eq!(calls.outgoing_keys(NOBODY), [keys[3]]);
    assert_eq!(calls.in_flight(), 2);
    for key in keys {
        calls.end(key);
    }
    for endpoint in [ann, one, two] {
        assert_eq!((calls.outgoing(endpoint), calls.incoming(endpoint)), (0, 0));
        calls.remove_endpoint(endpoint);
    }
    assert_eq!(calls.len(), 0);
}

#[test]
fn a_call_is_found_by_the_id_of_its_caller() {
    let mut calls = Calls::default();
    let (ann, ben, worker) =
        (calls.add_endpoint(link(1)), calls.add_endpoint(link(2)), calls.add_endpoint(link(3)));
    let long = format!("\"{}\"", "x".repeat(100));
    let first = ask(&mut calls, ann, worker, &long);
    ask(&mut calls, ben, worker, "7");
    assert_eq!(calls.find(ann, long.as_bytes()), Some(first));
    assert_eq!(calls.find(ann, b"7"), None);
}

#[test]
fn a_call_is_found_among_many_whichever_have_ended() {
    let mut calls = Calls::default();
    let (ann, worker) = (calls.add_endpoint(link(1)), calls.add_endpoint(link(2)));
    let mut open: Vec<(String, CallKey)> = Vec::new();
    let mut random = 1u32;
    for nth in 0..20_000 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // The number of open calls rises and falls over the bound again and again, and some ids are used twice.
        let target = if (nth / 2_000) % 2 == 0 { CALLS_SEARCHED * 3 } else { CALLS_SEARCHED / 2 };
        if open.len() < target {
            let id = (random >> 20).to_string();
            open.push((id.clone(), ask(&mut calls, ann, worker, &id)));
        } else {
            let (_, key) = open.remove((random >> 8) as usize % open.len());
            calls.end(key);
        }
        let wanted = (random >> 20).to_string();
        let newest = open.iter().rfind(|(id, _)| *id == wanted).map(|(_, key)| *key);
        assert_eq!(calls.find(ann, wanted.as_bytes()), newest, "{nth}");
    }
    open.into_iter().for_each(|(_, key)| drop(calls.end(key)));
    calls.remove_endpoint(ann);
}

#[test]
fn the_calls_about_a_session_are_counted() {
    let mut calls = Calls::default();
    let id = WorkerId(Key { index: 0, generation: 1 });
    let (ann, worker) = (calls.add_endpoint(link(1)), calls.add_endpoint(Endpoint::Worker(id)));
    let session = |generation| SessionKey(Key { index: 3, generation });
    let about = |calls: &mut Calls, from, to, key| calls.ask(from, to, Id::none(), Purpose::Ask, Some(key));
    let first = about(&mut calls, ann, worker, session(1));
    about(&mut calls, worker, ann, session(1));
    assert_eq!(calls.about(session(1)), 1, "a request of the agent does not count");
    assert_eq!(calls.asks_about(session(1)), 1);
    calls.reassign(first, BUS);
    assert_eq!(calls.about(session(1)), 0);
    calls.reassign(first, worker);
    assert_eq!(calls.about(session(1)), 1);
    let second = about(&mut calls, ann, worker, session(2));
    calls.end(first);
    assert_eq!((calls.about(session(1)), calls.about(session(2))), (0, 1));
    calls.end(second);
    assert_eq!(calls.about(session(2)), 0);
}
