//! Figures beside their goals: what was measured, what it should be, and whether that is good enough.
//!
//! A count either meets its goal or does not. A time depends on what else the machine does, so one that misses its goal
//! is reported as late, and only one that misses it grossly is a failure.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

use crate::print::{answer, micros, red};

/// A time is a failure beyond this many times its goal.
const GROSS: f64 = 10.0;

/// Shorter times count as this: they are up to the scheduler, not to the bus.
const SHORTEST: Duration = Duration::from_millis(1);

#[derive(Default)]
pub(crate) struct Report {
    figures: Vec<Figure>,
}

struct Figure {
    what: String,
    got: String,
    goal: String,
    result: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Met,
    Late,
    Missed,
    /// The figure has no goal.
    Noted,
}

impl Report {
    /// A figure without a goal.
    pub(crate) fn note(&mut self, what: &str, got: impl ToString) {
        self.push(what, got.to_string(), String::new(), Outcome::Noted);
    }

    pub(crate) fn check(&mut self, what: &str, got: impl ToString, goal: impl ToString, met: bool) {
        let result = if met { Outcome::Met } else { Outcome::Missed };
        self.push(what, got.to_string(), goal.to_string(), result);
    }

    pub(crate) fn at_most(&mut self, what: &str, got: u64, most: u64) {
        self.check(what, got, if most == 0 { "0".to_owned() } else { format!("<= {most}") }, got <= most);
    }

    pub(crate) fn holds(&mut self, what: &str, holds: bool) {
        self.check(what, if holds { "yes" } else { "no" }, "yes", holds);
    }

    pub(crate) fn bytes_at_most(&mut self, what: &str, got: u64, most: u64) {
        self.check(what, mebibytes(got), format!("<= {}", mebibytes(most)), got <= most);
    }

    pub(crate) fn time_at_most(&mut self, what: &str, got: Duration, most: Duration) {
        let result = Outcome::of_time(got.as_secs_f64(), most.as_secs_f64());
        self.push(what, time(got), format!("<= {}", time(most)), result);
    }

    /// The same, with a time of its own beyond which it is a failure.
    pub(crate) fn time_within(&mut self, what: &str, got: Duration, most: Duration, gross: Duration) {
        let gross = gross.as_secs_f64() / most.as_secs_f64();
        let result = Outcome::of(got.as_secs_f64(), most.as_secs_f64(), gross);
        self.push(what, time(got), format!("<= {}", time(most)), result);
    }

    /// A time beside one of the same run, so that a noisy machine slows both.
    pub(crate) fn times_at_most(&mut self, what: &str, got: Duration, base: Duration, most: f64) {
        let times = got.as_secs_f64() / base.max(SHORTEST).as_secs_f64();
        let result = Outcome::of_time(times, most);
        let got = format!("{times:.2} x ({} / {})", time(got), time(base));
        self.push(what, got, format!("<= {most} x"), result);
    }

    pub(crate) fn share_at_most(&mut self, what: &str, got: f64, most_percent: f64) {
        let percent = 100.0 * got;
        let result = Outcome::of_time(percent, most_percent);
        self.push(what, format!("{percent:.2} %"), format!("<= {most_percent} %"), result);
    }

    fn push(&mut self, what: &str, got: String, goal: String, result: Outcome) {
        self.figures.push(Figure { what: what.to_owned(), got, goal, result });
    }

    pub(crate) fn is_met(&self) -> bool {
        self.figures.iter().all(|figure| figure.result != Outcome::Missed)
    }

    /// Prints all figures and gives the exit code.
    pub(crate) fn finish(&self, as_json: bool) -> ExitCode {
        let text = if as_json { format!("{}\n", self.to_json()) } else { self.table() };
        let printed = answer(&text);
        if self.is_met() { printed } else { ExitCode::FAILURE }
    }

    fn to_json(&self) -> Value {
        let figures = self.figures.iter().map(|figure| {
            json!({ "figure": figure.what, "got": figure.got, "goal": figure.goal, "result": figure.result.word() })
        });
        json!({ "met": self.is_met(), "figures": figures.collect::<Vec<_>>() })
    }

    /// A figure that has more than one line, such as an error with a log, is told whole below the table.
    fn table(&self) -> String {
        let width = |of: fn(&Figure) -> &str| {
            self.figures.iter().map(|figure| of(figure).chars().count()).max().unwrap_or(0)
        };
        let (what, got, goal) = (width(|one| &one.what), width(Figure::first_line), width(|one| &one.goal));
        let mut text = String::new();
        for figure in &self.figures {
            let word = figure.result.word();
            let word = if figure.result == Outcome::Missed { red(word) } else { word.to_owned() };
            let line = format!(
                "{:what$}  {:>got$}  {:goal$}  {word}",
                figure.what,
                figure.first_line(),
                figure.goal
            );
            text += line.trim_end();
            text.push('\n');
        }
        for figure in self.figures.iter().filter(|figure| figure.got.trim_end().contains('\n')) {
            text += &format!("\n{}: {}\n", figure.what, figure.got.trim_end());
        }
        text
    }
}

impl Figure {
    fn first_line(&self) -> &str {
        self.got.lines().next().unwrap_or_default()
    }
}

impl Outcome {
    fn of_time(got: f64, most: f64) -> Outcome {
        Outcome::of(got, most, GROSS)
    }

    fn of(got: f64, most: f64, gross: f64) -> Outcome {
        if got <= most {
            Outcome::Met
        } else if got <= most * gross {
            Outcome::Late
        } else {
            Outcome::Missed
        }
    }

    fn word(self) -> &'static str {
        match self {
            Outcome::Met => "ok",
            Outcome::Late => "late",
            Outcome::Missed => "MISSED",
            Outcome::Noted => "",
        }
    }
}

pub(crate) fn time(time: Duration) -> String {
    micros(time.as_secs_f64() * 1e6)
}

pub(crate) fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(report: &Report) -> Vec<Outcome> {
        report.figures.iter().map(|figure| figure.result).collect()
    }

    #[test]
    fn counts_fail_at_once_and_times_only_grossly() {
        let mut report = Report::default();
        let ms = Duration::from_millis;
        report.at_most("wrong", 0, 0);
        report.time_at_most("error after a death", ms(400), ms(50));
        report.times_at_most("p99", ms(19), ms(1), 2.0);
        report.time_within("wait", ms(14), ms(5), ms(15));
        report.note("kills", 7);
        assert!(report.is_met());
        report.time_at_most("error after a death", ms(501), ms(50));
        report.time_within("wait", ms(16), ms(5), ms(15));
        report.at_most("wrong", 1, 0);
        report.bytes_at_most("memory", 2, 1);
        assert!(!report.is_met());
        use Outcome::{Late, Met, Missed, Noted};
        assert_eq!(results(&report), [Met, Late, Late, Late, Noted, Missed, Missed, Missed, Missed]);
    }

    #[test]
    fn a_table_has_a_line_for_each_figure() {
        let mut report = Report::default();
        report.at_most("lost", 0, 0);
        report.note("kills", 1200);
        assert_eq!(report.table(), "lost      0  0  ok\nkills  1200\n");
        report.check("up", "not in 30 s\na log\nof two lines\n", "yes", false);
        let table = "lost             0  0    ok\nkills         1200\nup     not in 30 s  yes";
        let below = "up: not in 30 s\na log\nof two lines\n";
        assert_eq!(report.table(), format!("{table}  {}\n\n{below}", red("MISSED")));
    }
}
