//! What must hold for the questions of a session, whoever is asked, answers and leaves.

use super::*;
use crate::id::Key;
use crate::wire::message::Message;
use crate::wire::scan::Envelope;

fn held(id: u32) -> Held {
    let line = format!(r#"{{"id":{id},"method":"session/request_permission","params":{{}}}}"#);
    Held::new(Message::new(line.as_bytes(), &Envelope::scan(line.as_bytes()).unwrap()))
}

fn client(index: u32) -> Link {
    Link(Key { index, generation: 1 })
}

fn call(order: u64) -> CallKey {
    CallKey::from_wire(order.to_string().as_bytes()).unwrap()
}

/// What is done to one question with two clients.
#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(u32),
    Answer { client: u32, counts: bool },
    Release(u32),
    Withdraw(u32),
    Refuse,
}

const STEPS: [Step; 11] = [
    Step::Ask(0),
    Step::Ask(1),
    Step::Answer { client: 0, counts: true },
    Step::Answer { client: 0, counts: false },
    Step::Answer { client: 1, counts: true },
    Step::Answer { client: 1, counts: false },
    Step::Release(0),
    Step::Release(1),
    Step::Withdraw(0),
    Step::Withdraw(1),
    Step::Refuse,
];

/// Plays these steps, and says how often the question had an end.
fn ends(steps: &[Step]) -> usize {
    let (mut questions, mut bytes, mut ends) = (Questions::default(), HeldBytes::default(), 0);
    let mut calls = [None, None];
    let mut orders = 100;
    questions.add(7, held(1), &mut bytes);
    for step in steps {
        match *step {
            Step::Ask(index) => {
                // Nobody is asked twice, and nothing is asked that is withdrawn.
                let may = questions.get(7).is_some_and(|it| !it.knows(client(index)) && !it.is_withdrawn());
                if may {
                    orders += 1;
                    calls[index as usize] = Some(call(orders));
                    questions.ask(7, client(index), call(orders));
                }
            }
            Step::Answer { client: index, counts } => {
                let Some(call) = calls[index as usize].take() else { continue };
                let others = questions.get(7).is_some_and(|it| it.asked().count() > 1);
                match questions.answered((client(index), call), counts, &mut bytes) {
                    Answered::Decides(7, left) => {
                        assert!(counts || !others, "who leaves it to others does not decide");
                        assert!(left.asked().all(|(link, _)| link != client(index)));
                        ends += 1;
                    }
                    Answered::LeftToOthers => assert!(!counts && others),
                    // The question was decided before, so the call is of no use.
                    Answered::Unknown => assert!(questions.is_empty()),
                    other @ Answered::Decides(..) => panic!("{other:?}"),
                }
            }
            Step::Release(index) => {
                let released = questions.release(7, client(index));
                assert!(released.is_none() || released == calls[index as usize]);
                if released.is_some() {
                    calls[index as usize] = None;
                }
            }
            Step::Withdraw(index) => {
                let concerned = calls[index as usize].and_then(|call| questions.withdraw(call));
                assert!(concerned.is_none_or(|all| all.iter().any(|(link, _)| *link == client(index))));
            }
            Step::Refuse => ends += questions.take_unasked(&mut bytes).len(),
        }
        questions.check();
        assert_eq!(questions.bytes(), questions.count_bytes());
        assert_eq!(questions.bytes(), bytes.get());
        assert_eq!(questions.has_unasked(), questions.get(7).is_some_and(|it| it.asked().next().is_none()));
        assert_eq!(ends, usize::from(questions.is_empty()), "it has one end, or is still there: {steps:?}");
    }
    ends
}

#[test]
fn every_order_of_events_gives_a_question_at_most_one_end() {
    let mut histories = vec![Vec::new()];
    let mut ended = 0;
    for _ in 0..4 {
        let longer = |history: &Vec<Step>| {
            let history = history.clone();
            STEPS.iter().map(move |step| [&history[..], &[*step]].concat())
        };
        histories = histories.iter().flat_map(longer).collect();
        ended += histories.iter().map(|history| ends(history)).sum::<usize>();
    }
    assert!(histories.len() == 11usize.pow(4) && ended > 5000, "{ended}");
}

#[test]
fn who_has_left_the_answer_to_others_is_asked_again_only_after_it_was_away() {
    let (mut questions, mut bytes) = (Questions::default(), HeldBytes::default());
    questions.add(1, held(1), &mut bytes);
    questions.ask(1, client(0), call(10));
    questions.ask(1, client(1), call(11));
    assert!(matches!(questions.answered((client(0), call(10)), false, &mut bytes), Answered::LeftToOthers));
    assert!(questions.get(1).is_some_and(|it| it.knows(client(0)) && it.is_asked()));
    assert_eq!(questions.release(1, client(0)), None);
    assert!(questions.get(1).is_some_and(|it| !it.knows(client(0))));
}

#[test]
fn what_the_last_one_who_was_asked_leaves_is_asked_of_those_who_left_it_to_that_one() {
    let (mut questions, mut bytes) = (Questions::default(), HeldBytes::default());
    questions.add(1, held(1), &mut bytes);
    questions.ask(1, client(0), call(10));
    questions.ask(1, client(1), call(11));
    questions.answered((client(0), call(10)), false, &mut bytes);
    assert_eq!(questions.release(1, client(1)), Some(call(11)));
    assert!(questions.has_unasked());
    assert!(questions.get(1).is_some_and(|it| !it.knows(client(0)) && !it.knows(client(1))));
}

#[test]
fn what_nobody_is_asked_is_found_by_its_id() {
    let (mut questions, mut bytes) = (Questions::default(), HeldBytes::default());
    (1..4).for_each(|order| questions.add(u64::from(order), held(order), &mut bytes));
    questions.ask(2, client(0), call(10));
    assert!(questions.take_unasked_under(b"2", &mut bytes).is_none(), "it is asked");
    assert!(questions.take_unasked_under(b"3", &mut bytes).is_some());
    assert_eq!(questions.unasked().map(|(order, _)| order).collect::<Vec<_>>(), [1]);
    assert!(questions.tell(2) && !questions.tell(2) && !questions.tell(9));
    assert_eq!(questions.take(&mut bytes).len(), 2);
    assert!(questions.is_empty() && bytes.get() == 0);
}
