//! A program that ends at once, eight times over: it is given up for a while, and whoever asks for it is told so.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{PATIENCE, Trial, unseen};
use crate::cost;

const LENGTH: Duration = Duration::from_secs(30);
/// `max_restarts`, and the first start.
const STARTS: usize = 6;
const WORKERS: usize = 8;

pub(super) fn run(trial: &mut Trial<'_>) -> io::Result<()> {
    let pool = json!({ "id": "false", "command": "/bin/false", "instances": WORKERS });
    let bus = trial.start(&json!({ "listen": ["tcp://127.0.0.1:0"], "pools": [pool] }))?;
    let spent = cost::cpu_time(bus.pid()).ok_or_else(unseen)?;
    let begun = Instant::now();
    let mut client = bus.client()?;
    let is_down = |status: &serde_json::Value| {
        let workers = status["pools"][0]["workers"].as_array().into_iter().flatten();
        workers.filter(|worker| worker["state"] == "broken").count() == WORKERS
    };
    let down = bus.until(PATIENCE, |_| {
        thread::sleep(Duration::from_millis(100));
        client.status().is_ok_and(|status| is_down(&status))
    });
    trial.sheet.judge("crashes: all eight are given up", if down { "yes" } else { "no" }, "yes", down);
    let asked = Instant::now();
    let answer = client.ask("ask", "any/thing", json!({}))?;
    let took = asked.elapsed();
    let reason = answer["error"]["data"]["reason"].as_str().unwrap_or("none").to_owned();
    trial.sheet.judge("crashes: the answer", &reason, "pool_down", reason == "pool_down");
    trial.sheet.time_at_most("crashes: it takes", took, Duration::from_millis(10));
    thread::sleep(LENGTH.saturating_sub(begun.elapsed()));
    let starts = bus.log().matches("started, pid").count();
    trial.sheet.at_most("crashes: starts in 30 s", starts as u64, (WORKERS * STARTS) as u64);
    let spent = cost::cpu_time(bus.pid()).ok_or_else(unseen)?.saturating_sub(spent);
    let share = spent.as_secs_f64() / begun.elapsed().as_secs_f64();
    trial.sheet.share_at_most("crashes: processor time", share, 2.0);
    Ok(())
}
