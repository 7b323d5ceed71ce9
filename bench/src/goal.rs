//! Figures beside their goals: what was reached, what was to be, and whether that will do.
//!
//! What is counted either meets its goal or does not. What is timed depends on what else the machine does, so a time
//! that misses its goal is told as late, and only one that misses it grossly is a failure.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

use crate::print::{answer, micros, red};

/// A time is a failure beyond this many times its goal.
const GROSS: u32 = 10;

/// What takes less is not told apart: that is up to the scheduler, not to the bus.
const SHORTEST: Duration = Duration::from_millis(1);

#[derive(Default)]
pub(crate) struct Sheet {
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
    /// It has no goal.
    Told,
}

impl Sheet {
    /// Something that is good to know.
    pub(crate) fn tell(&mut self, what: &str, got: impl ToString) {
        self.push(what, got.to_string(), String::new(), Outcome::Told);
    }

    pub(crate) fn judge(&mut self, what: &str, got: impl ToString, goal: impl ToString, met: bool) {
        let result = if met { Outcome::Met } else { Outcome::Missed };
        self.push(what, got.to_string(), goal.to_string(), result);
    }

    pub(crate) fn at_most(&mut self, what: &str, got: u64, most: u64) {
        self.judge(what, got, if most == 0 { "0".to_owned() } else { format!("<= {most}") }, got <= most);
    }

    /// `None`: nothing was seen to be measured.
    pub(crate) fn bytes_at_most(&mut self, what: &str, got: Option<u64>, most: u64) {
        let text = got.map_or("unknown".to_owned(), mebibytes);
        self.judge(what, text, format!("<= {}", mebibytes(most)), got.is_some_and(|got| got <= most));
    }

    pub(crate) fn time_at_most(&mut self, what: &str, got: Duration, most: Duration) {
        let result = match got {
            got if got <= most => Outcome::Met,
            got if got <= most * GROSS => Outcome::Late,
            _ => Outcome::Missed,
        };
        self.push(what, time(got), format!("<= {}", time(most)), result);
    }

    /// A time beside one of the same run, where a noisy machine meets both.
    pub(crate) fn times_at_most(&mut self, what: &str, got: Duration, base: Duration, most: f64) {
        let times = got.as_secs_f64() / base.max(SHORTEST).as_secs_f64();
        let result = match times {
            times if times <= most => Outcome::Met,
            times if times <= most * f64::from(GROSS) => Outcome::Late,
            _ => Outcome::Missed,
        };
        let got = format!("{times:.2} x ({} / {})", time(got), time(base));
        self.push(what, got, format!("<= {most} x"), result);
    }

    pub(crate) fn share_at_most(&mut self, what: &str, got: f64, most_percent: f64) {
        let percent = 100.0 * got;
        let result = match percent {
            percent if percent <= most_percent => Outcome::Met,
            percent if percent <= most_percent * f64::from(GROSS) => Outcome::Late,
            _ => Outcome::Missed,
        };
        self.push(what, format!("{percent:.2} %"), format!("<= {most_percent} %"), result);
    }

    fn push(&mut self, what: &str, got: String, goal: String, result: Outcome) {
        self.figures.push(Figure { what: what.to_owned(), got, goal, result });
    }

    pub(crate) fn is_met(&self) -> bool {
        self.figures.iter().all(|figure| figure.result != Outcome::Missed)
    }

    /// Prints all, as JSON if that is wanted, and gives the exit code.
    pub(crate) fn finish(&self, as_json: bool) -> ExitCode {
        let printed = match as_json {
            true => answer(&format!("{}\n", self.to_json())),
            false => answer(&self.table()),
        };
        if self.is_met() { printed } else { ExitCode::FAILURE }
    }

    fn to_json(&self) -> Value {
        let figures = self.figures.iter().map(|figure| {
            json!({ "figure": figure.what, "got": figure.got, "goal": figure.goal, "result": figure.result.word() })
        });
        json!({ "met": self.is_met(), "figures": figures.collect::<Vec<_>>() })
    }

    fn table(&self) -> String {
        let width = |of: fn(&Figure) -> &str| {
            self.figures.iter().map(|figure| of(figure).chars().count()).max().unwrap_or(0)
        };
        let (what, got, goal) = (width(|one| &one.what), width(|one| &one.got), width(|one| &one.goal));
        let mut text = String::new();
        for figure in &self.figures {
            let word = figure.result.word();
            let word = if figure.result == Outcome::Missed { red(word) } else { word.to_owned() };
            let line = format!("{:what$}  {:>got$}  {:goal$}  {word}", figure.what, figure.got, figure.goal);
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

impl Outcome {
    fn word(self) -> &'static str {
        match self {
            Outcome::Met => "ok",
            Outcome::Late => "late",
            Outcome::Missed => "MISSED",
            Outcome::Told => "",
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

    fn results(sheet: &Sheet) -> Vec<Outcome> {
        sheet.figures.iter().map(|figure| figure.result).collect()
    }

    #[test]
    fn counts_fail_at_once_and_times_only_grossly() {
        let mut sheet = Sheet::default();
        let ms = Duration::from_millis;
        sheet.at_most("wrong", 0, 0);
        sheet.time_at_most("error after a death", ms(400), ms(50));
        sheet.times_at_most("p99", ms(19), ms(1), 2.0);
        sheet.tell("kills", 7);
        assert!(sheet.is_met());
        sheet.time_at_most("error after a death", ms(501), ms(50));
        sheet.at_most("wrong", 1, 0);
        sheet.bytes_at_most("memory", None, 1);
        assert!(!sheet.is_met());
        use Outcome::{Late, Met, Missed, Told};
        assert_eq!(results(&sheet), [Met, Late, Late, Told, Missed, Missed, Missed]);
    }

    #[test]
    fn a_table_has_a_line_for_each_figure() {
        let mut sheet = Sheet::default();
        sheet.at_most("lost", 0, 0);
        sheet.tell("kills", 1200);
        assert_eq!(sheet.table(), "lost      0  0  ok\nkills  1200\n");
    }
}
