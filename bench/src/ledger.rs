//! The requests of one connection that are in flight, and a verdict on every line that comes back.
//!
//! Ids count from 1. Each is in flight from `ask` until its first answer; those that are still in flight at the end are
//! lost. This module knows nothing of sockets or of rates.

use std::collections::VecDeque;
use std::time::Instant;

use crate::request::{Answer, Shape};

pub(crate) struct Ledger {
    connection: u32,
    /// The oldest id that may still be in flight: the one of `asked[0]`.
    oldest: u64,
    /// When each request from `oldest` on was sent. None: it has been answered.
    asked: VecDeque<Option<Instant>>,
    in_flight: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The right answer to the request that was sent at this moment.
    Right(Instant),
    /// A correct part of an answer, with more to come.
    Passing,
    /// An answer with other params than those of its request.
    Spoiled,
    /// An answer to a request that has been answered before.
    Repeated,
    /// No answer to a request of this connection.
    Unasked,
}

impl Ledger {
    pub(crate) fn new(connection: u32) -> Ledger {
        Ledger { connection, oldest: 1, asked: VecDeque::new(), in_flight: 0 }
    }

    /// Appends the next request to the output.
    pub(crate) fn ask(&mut self, shape: &Shape, into: &mut Vec<u8>, now: Instant) {
        shape.write(into, self.connection, self.oldest + self.asked.len() as u64);
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
        if !answer.params.is_some_and(|params| shape.is_params(params, self.connection, answer.id)) {
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

    /// A connection with so many requests in flight, and these requests, which a plain echo would send back.
    fn asked(connection: u32, count: usize) -> (Ledger, Shape, Vec<Vec<u8>>, Instant) {
        let mut ledger = Ledger::new(connection);
        let shape = Shape::new(200);
        let now = Instant::now();
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
