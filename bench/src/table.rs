//! The results of `compare`, as a table for a terminal, for the documentation and for a program, and as plots.

use std::fmt::Write;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use crate::case::{Case, Stream};
use crate::outcome::Outcome;
use crate::peer::Peer;
use crate::plot::{Line, Plot};
use crate::print::{micros, thousands};

pub(crate) struct Table {
    pub(crate) peers: Vec<Peer>,
    pub(crate) rows: Vec<Row>,
    pub(crate) seconds: Duration,
}

/// The outcomes of one load: for each peer, in their order, one outcome per round.
pub(crate) struct Row {
    pub(crate) case: Case,
    pub(crate) outcomes: Vec<Vec<Outcome>>,
}

impl Row {
    pub(crate) fn new(case: Case, peers: usize) -> Row {
        Row { case, outcomes: (0..peers).map(|_| Vec::new()).collect() }
    }

    fn median(&self, peer: usize, of: impl Fn(&Outcome) -> f64) -> f64 {
        median(self.outcomes[peer].iter().map(of).collect())
    }

    /// The ratio of one peer to another, of their times or their rates as the goal says.
    fn ratio(&self, peer: usize, beside: usize) -> f64 {
        let of = |outcome: &Outcome| {
            if self.case.goal.is_time() { outcome.latency_us(0.5) } else { outcome.rate() }
        };
        let rounds = self.outcomes[peer].iter().zip(&self.outcomes[beside]);
        median(rounds.map(|(one, other)| of(one) / of(other)).collect())
    }
}

impl Table {
    pub(crate) fn text(&self) -> String {
        let (bus, beside) = self.compared();
        let mut text = format!("{:<18}", "load");
        for peer in &self.peers {
            let _ = write!(text, "{:>11}{:>10}", peer.name(), "p50");
        }
        let ratio = format!("bus/{}", self.peers[beside].name());
        let _ = writeln!(
            text,
            "{ratio:>11}{:>17}{:>10}{:>12}{:>12}{:>10}",
            "goal", "bus p99", "CPU/rq", "user/rq", "bus RSS"
        );
        for row in &self.rows {
            let _ = write!(text, "{:<18}", row.case.name());
            for peer in 0..self.peers.len() {
                let rate = thousands(row.median(peer, Outcome::rate));
                let _ = write!(text, "{rate:>11}{:>10}", micros(row.median(peer, |one| one.latency_us(0.5))));
            }
            let Cost { cpu, user, resident } = cost(row, bus);
            let _ = writeln!(
                text,
                "{:>11.2}{:>17}{:>10}{cpu:>12}{user:>12}{resident:>10}",
                row.ratio(bus, beside),
                self.goal(row),
                micros(row.median(bus, |one| one.latency_us(0.99))),
            );
        }
        text += "Requests or turns a second; medians of the rounds, also of their ratios, which are of p50 where the\n\
                 goal is. Alone and behind socat each connection has an agent of its own, behind the bus all share\n\
                 one. CPU time and memory are those of the bus alone. A goal with ! is missed.\n";
        text
    }

    pub(crate) fn markdown(&self) -> String {
        let (bus, beside) = self.compared();
        let other = self.peers[beside].name();
        let names = self.peers.iter().map(|peer| format!(" {} |", peer.name())).collect::<String>();
        let mut text = format!(
            "| load |{names} bus / {other} | goal | p50 {other} | p50 bus | CPU per request | its own (user) |\n"
        );
        text += &format!("|---|{}---|---|---|---|---|---|\n", "---|".repeat(self.peers.len()));
        for row in &self.rows {
            let rates = (0..self.peers.len())
                .map(|peer| format!(" {} |", thousands(row.median(peer, Outcome::rate))));
            let p50 = |peer| micros(row.median(peer, |one| one.latency_us(0.5)));
            let _ = writeln!(
                text,
                "| {} |{} {:.2} | {} | {} | {} | {} | {} |",
                row.case.describe(),
                rates.collect::<String>(),
                row.ratio(bus, beside),
                self.goal(row),
                p50(beside),
                p50(bus),
                cost(row, bus).cpu,
                cost(row, bus).user,
            );
        }
        text
    }

    pub(crate) fn to_json(&self) -> Value {
        let (bus, beside) = self.compared();
        let row = |row: &Row| {
            let rounds = |index: usize| row.outcomes[index].iter().map(Outcome::to_json).collect::<Vec<_>>();
            let peers = self.peers.iter().enumerate().map(|(index, peer)| {
                let rate = row.median(index, Outcome::rate);
                (peer.name().to_owned(), json!({ "rate": rate, "rounds": rounds(index) }))
            });
            let ratio = row.ratio(bus, beside);
            json!({
                "load": row.case.name(),
                "connections": row.case.connections,
                "window": row.case.window,
                "bytes": row.case.line_bytes,
                "ratio": ratio,
                "ratio_of": if row.case.goal.is_time() { "p50" } else { "rate" },
                "goal_met": row.case.goal.is_met(ratio),
                "peers": peers.collect::<Map<_, _>>(),
            })
        };
        let loads = self.rows.iter().map(row).collect::<Vec<_>>();
        json!({ "seconds": self.seconds.as_secs_f64(), "beside": self.peers[beside].name(), "loads": loads })
    }

    /// Names and contents of the files.
    pub(crate) fn plots(&self) -> Vec<(&'static str, String)> {
        vec![("throughput.svg", self.throughput().svg()), ("latency.svg", self.latency().svg())]
    }

    fn throughput(&self) -> Plot<'static> {
        let sized = |row: &&Row| {
            matches!(row.case.stream, Stream::No) && (row.case.connections, row.case.window) == (1, 64)
        };
        let line = |(peer, name): (usize, &Peer)| {
            let point = |row: &Row| (row.case.line_bytes as f64, row.median(peer, Outcome::rate));
            let points = self.rows.iter().filter(sized).map(point).collect();
            Line { name: name.name().to_owned(), points }
        };
        let marks =
            [(200.0, "200 B"), (1024.0, "1 KB"), (4096.0, "4 KB"), (16384.0, "16 KB"), (65536.0, "64 KB")];
        Plot {
            title: "Requests a second by their size, 64 in flight",
            x_title: "size of a request",
            x_marks: marks.map(|(at, text)| (at, text.to_owned())).into(),
            y_mark: thousands,
            y_log: true,
            lines: self.peers.iter().enumerate().map(line).collect(),
        }
    }

    fn latency(&self) -> Plot<'static> {
        let marks = [(2.0, "50 %"), (10.0, "90 %"), (100.0, "99 %"), (1e3, "99.9 %"), (1e4, "99.99 %")];
        let line = |(peer, name): (usize, &Peer)| {
            let mut all = Histogram::<u64>::new(3).expect("the bounds are good");
            let single = &self.rows[0].outcomes[peer];
            single.iter().for_each(|outcome| all.add(&outcome.latency_ns).expect("it grows as needed"));
            // The points are evenly spread on an axis where each nine takes the same room.
            let points = (0..=60).map(|step| 2.0 * 5000f64.powf(f64::from(step) / 60.0));
            let us = |one_in: f64| all.value_at_quantile(1.0 - 1.0 / one_in) as f64 / 1000.0;
            let points = points.map(|one_in| (one_in, us(one_in))).collect();
            Line { name: name.name().to_owned(), points }
        };
        Plot {
            title: "Time of a round trip, one request of 200 B in flight",
            x_title: "share of requests that took at most so long",
            x_marks: marks.map(|(at, text)| (at, text.to_owned())).into(),
            y_mark: micros,
            y_log: true,
            lines: self.peers.iter().enumerate().map(line).collect(),
        }
    }

    /// The bus, and the peer that it is compared with.
    fn compared(&self) -> (usize, usize) {
        let find = |peer| self.peers.iter().position(|other| *other == peer);
        (find(Peer::Bus).expect("it is always measured"), find(Peer::Socat).unwrap_or(0))
    }

    /// The goal, marked if it is missed. Without socat there is nothing to compare with.
    fn goal(&self, row: &Row) -> String {
        let (bus, beside) = self.compared();
        if self.peers[beside] != Peer::Socat {
            return "-".to_owned();
        }
        let missed = !row.case.goal.is_met(row.ratio(bus, beside));
        format!("{}{}", row.case.goal.describe(), if missed { " !" } else { "" })
    }
}

/// The CPU time of the bus for each request, the part of it outside of the system, and its memory.
struct Cost {
    cpu: String,
    user: String,
    resident: String,
}

fn cost(row: &Row, bus: usize) -> Cost {
    let shown = |of: &dyn Fn(&Outcome) -> Option<f64>, text: &dyn Fn(f64) -> String| {
        let value = row.median(bus, |one| of(one).unwrap_or(f64::NAN));
        if value.is_finite() { text(value) } else { "-".to_owned() }
    };
    let micros = |us: f64| format!("{us:.2} us");
    Cost {
        cpu: shown(&Outcome::watched_us_a_request, &micros),
        user: shown(&Outcome::watched_user_us_a_request, &micros),
        resident: shown(&|one| Some(one.watched_bytes? as f64), &|bytes| format!("{:.1} MB", bytes / 1e6)),
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let (low, high) = ((values.len() - 1) / 2, values.len() / 2);
    (values[low] + values[high]) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_or_between_the_two_in_it() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(vec![f64::NAN]).is_nan());
    }
}
