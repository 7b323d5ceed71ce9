//! `usage`: what agents have reported of tokens and cost, by day and pool.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clients::Fault;
use clients::table::{self, Cell};
use history::index::{Used, report as report_of};
use rpc::text::{replace_control, rfc3339_of_millis, unix_ms};

use crate::bus_args::BusArgs;
use crate::kept_sessions;
use crate::output::{print, report_fault};

const EXAMPLES: &str = "\
Examples:
  stdio-bus usage                            the last seven days, by day and pool
  stdio-bus usage --days 30 --json | jq '.pools'

What agents report is counted: sums of tokens in the answers to prompts, and the cost of a session. How full the \
context is, is not counted. An agent that reports nothing is not in it, and neither is what was not kept.";

const DAY_MS: u64 = 86_400_000;

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// How many days, today included
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
    /// Print JSON: by session, pool and day
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    bus: BusArgs,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let since = rfc3339_of_millis(unix_ms().saturating_sub(u64::from(args.days - 1) * DAY_MS));
    match kept_sessions::usage(&args.bus, &since[..10]) {
        Ok(used) if args.json => print(&format!("{}\n", report_of(&used))),
        Ok(used) if used.is_empty() => print("no agent has reported what it used\n"),
        Ok(used) => print(&describe(&used)),
        Err(fault) => report(&fault),
    }
}

fn report(fault: &Fault) -> ExitCode {
    report_fault(fault)
}

type Amounts<'a> = BTreeMap<&'a str, f64>;

/// The sums by what `of` says.
fn sums<'a, K: Ord>(used: &'a [Used], of: impl Fn(&'a Used) -> K) -> BTreeMap<K, Amounts<'a>> {
    let mut sums: BTreeMap<K, Amounts<'a>> = BTreeMap::new();
    for it in used {
        *sums.entry(of(it)).or_default().entry(&it.kind).or_default() += it.amount;
    }
    sums
}

fn describe(used: &[Used]) -> String {
    let by_day_and_pool = sums(used, |it| (it.day.as_str(), it.pool.as_str()));
    let mut kinds: Vec<&str> = used.iter().map(|it| it.kind.as_str()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let heading = |kind: &&str| Cell::number(replace_control(&kind.replace("cost ", ""), ' ').to_uppercase());
    let mut rows =
        vec![[Cell::new("DAY".to_owned()), Cell::new("POOL".to_owned())].into_iter().collect::<Vec<_>>()];
    rows[0].extend(kinds.iter().map(heading));
    for ((day, pool), amounts) in &by_day_and_pool {
        let mut row = vec![Cell::new((*day).to_owned()), Cell::new(replace_control(pool, ' '))];
        row.extend(kinds.iter().map(|kind| {
            let amount = amounts.get(kind).copied().unwrap_or_default();
            Cell::number(if kind.starts_with("cost ") {
                format!("{amount:.4}")
            } else {
                format!("{amount:.0}")
            })
        }));
        rows.push(row);
    }
    table::lines(&rows).into_iter().map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn used(id: &str, pool: &str, day: &str, kind: &str, amount: f64) -> Used {
        let owned = str::to_owned;
        Used { id: owned(id), pool: owned(pool), day: owned(day), kind: owned(kind), amount }
    }

    #[test]
    fn what_was_used_is_added_by_day_pool_and_session() {
        let all = [
            used("a", "claude", "2026-11-17", "input", 100.0),
            used("a", "claude", "2026-11-18", "input", 50.0),
            used("b", "claude", "2026-11-18", "input", 7.0),
            used("b", "claude", "2026-11-18", "cost USD", 0.25),
        ];
        let json = report_of(&all);
        assert_eq!(
            json["days"][1],
            json!({ "day": "2026-11-18", "tokens": { "input": 57 }, "cost": { "USD": 0.25 } })
        );
        assert_eq!(json["sessions"][0]["tokens"]["input"], 150);
        assert_eq!(json["total"]["tokens"]["input"], 157);
        let text = describe(&all);
        let expected = "\
DAY         POOL       USD  INPUT
2026-11-17  claude  0.0000    100
2026-11-18  claude  0.2500     57
";
        assert_eq!(text, expected);
    }
}
