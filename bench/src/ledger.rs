//! What one connection has asked and not yet heard: judges every line that comes back.
//!
//! Ids count from 1. Each is in flight from `ask` until its first answer; whatever is still in flight when
//! nothing more will come is lost. Knows nothing of sockets or of rates.

use std::collections::VecDeque;
use std::time::Instant;

use crate::request::{Answer, Shape};

pub(crate) struct Ledger {
    asker: u32,
    /// The oldest id that may still be in flight, which is that of `asked[0]`.
    oldest: u64,
    /// When each id from `oldest` on was asked. None: it has been answered since.
    asked: VecDeque<Option<Instant>>,
    in_flight: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The answer to what was asked at that moment.
    Right(Instant),
    /// As it must be, and more is to come.
    Passing,
    /// An answer, but with other params than those of its request.
    Spoiled,
    /// An answer to what has been answered before.
    Repeated,
    /// About nothing that this connection has asked.
    Unasked,
}

impl Ledger {
    pub(crate) fn new(asker: u32) -> Ledger {
        Ledger { asker, oldest: 1, asked: VecDeque::new(), in_flight: 0 }
    }

    /// Appends the next request to what is to be sent.
    pub(crate) fn ask(&mut self, shape: &Shape, into: &mut Vec<u8>, now: Instant) {
        shape.write(into, self.asker, self.oldest + self.asked.len() as u64);
        self.asked.push_back(Some(now));
        self.in_flight += 1;
    }

    /// Judges one line, without its newline.
    pub(crate) fn judge(&mut self, shape: &Shape, line: &[u8]) -> Verdict {
        let Some(answer) = Answer::read(line).filter(|answer| answer.id > 0) else { return Verdict::Unasked };
        let Some(index) = answer.id.checked_sub(self.oldest) else { return Verdict::Repeated };
        let Some(asked) = self.asked.get_mut(index as usize) else { return Verdict::Unasked };
        let Some(asked) = asked.take() else { return Verdict::Repeated };
        self.in_flight -= 1;
        while let Some(None) = self.asked.front() {
            self.asked.pop_front();
            self.oldest += 1;
        }
        if !answer.params.is_some_and(|params| shape.is_params(params, self.asker, answer.id)) {
            return Verdict::Spoiled;
        }
        Verdict::Right(asked)
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection that has asked this many times, and its requests, which a plain echo would send back.
    fn asked(asker: u32, count: usize) -> (Ledger, Shape, Vec<Vec<u8>>, Instant) {
        let (mut ledger, shape, now) = (Ledger::new(asker), Shape::new(200), Instant::now());
        let mut sent = Vec::new();
        (0..count).for_each(|_| ledger.ask(&shape, &mut sent, now));
        let lines = sent.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let lines = lines.map(<[u8]>::to_vec).collect();
        (ledger, shape, lines, now)
    }

    #[test]
    fn answers_are_right_once_in_any_order_and_the_rest_is_lost() {
        let (mut ledger, shape, lines, now) = asked(5, 4);
        for index in [2, 0, 3] {
            assert_eq!(ledger.judge(&shape, &lines[index]), Verdict::Right(now));
        }
        for index in [0, 2, 3] {
            assert_eq!(ledger.judge(&shape, &lines[index]), Verdict::Repeated);
        }
        assert_eq!(ledger.in_flight(), 1);
        assert_eq!(ledger.judge(&shape, &lines[1]), Verdict::Right(now));
        assert_eq!((ledger.in_flight(), ledger.oldest, ledger.asked.len()), (0, 5, 0));
        assert_eq!(ledger.judge(&shape, &lines[1]), Verdict::Repeated);
    }

    #[test]
    fn another_connections_answer_is_spoiled_though_its_id_fits() {
        let (mut ann, shape, _, _) = asked(1, 1);
        let (_, _, bens, _) = asked(2, 1);
        assert_eq!(ann.judge(&shape, &bens[0]), Verdict::Spoiled);
        assert_eq!(ann.in_flight(), 0);
    }

    #[test]
    fn an_error_is_no_right_answer_and_noise_is_none_at_all() {
        let (mut ledger, shape, lines, now) = asked(1, 2);
        for noise in ["", "hello", r#"{"id":3,"result":{}}"#, r#"{"id":0,"result":{}}"#, r#"{"id":null}"#] {
            assert_eq!(ledger.judge(&shape, noise.as_bytes()), Verdict::Unasked, "{noise}");
        }
        assert_eq!(ledger.in_flight(), 2);
        assert_eq!(ledger.judge(&shape, br#"{"id":1,"error":{"code":-32050}}"#), Verdict::Spoiled);
        assert_eq!(ledger.judge(&shape, &lines[0]), Verdict::Repeated);
        assert_eq!(ledger.judge(&shape, &lines[1]), Verdict::Right(now));
    }
}
