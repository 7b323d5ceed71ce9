//! The status of a bus as Prometheus text, version 0.0.4.
//!
//! No label is a session, a client or a method: clients choose those, and each would be a time series of its own.

use std::fmt::Write;

use serde_json::Value;

use crate::status::list;

/// The media type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All figures of what `_bus/status` answers. A figure that is not there is left out.
pub fn describe(status: &Value) -> String {
    let mut text = Text::default();
    let version = status["version"].as_str().unwrap_or_default();
    text.family("stdio_bus_build_info", "gauge", "The version of the bus.");
    text.sample("stdio_bus_build_info", &[("version", version)], Some(1.0));
    text.one("stdio_bus_up_seconds", "gauge", "How long the bus has been up.", &status["uptime_sec"]);
    text.one("stdio_bus_clients", "gauge", "Connected clients.", &status["clients"]);
    text.one("stdio_bus_tracers", "gauge", "Clients that follow the traffic.", &status["tracers"]);
    text.one(
        "stdio_bus_held_bytes",
        "gauge",
        "Bytes that the bus holds for all peers.",
        &status["held_bytes"],
    );
    text.map("stdio_bus_limit", "gauge", "Configured limits.", "of", &status["limits"]);
    of_pools(&mut text, list(&status["pools"]));
    let counters = &status["counters"];
    text.one("stdio_bus_requests_total", "counter", "Requests in either direction.", &counters["requests"]);
    let errors = counters["errors"].as_f64();
    let results = counters["answers"].as_f64().zip(errors).map(|(answers, errors)| answers - errors);
    text.family("stdio_bus_answers_total", "counter", "Answers of workers and clients.");
    text.sample("stdio_bus_answers_total", &[("outcome", "result")], results);
    text.sample("stdio_bus_answers_total", &[("outcome", "error")], errors);
    text.map("stdio_bus_refused_total", "counter", "Errors of the bus itself.", "reason", &status["refused"]);
    text.map(
        "stdio_bus_lines_skipped_total",
        "counter",
        "Lines not passed on.",
        "reason",
        &status["skipped"],
    );
    for (name, help, key) in [
        ("stdio_bus_bytes_total", "Bytes read and written.", "bytes"),
        ("stdio_bus_lines_total", "Lines read and written.", "lines"),
    ] {
        text.family(name, "counter", help);
        for direction in ["in", "out"] {
            let count = counters[format!("{key}_{direction}")].as_f64();
            text.sample(name, &[("direction", direction)], count);
        }
    }
    text.0
}

fn of_pools(text: &mut Text, pools: &[Value]) {
    let id = |pool: &Value| pool["id"].as_str().unwrap_or_default().to_owned();
    for (name, kind, help, key) in [
        ("stdio_bus_sessions", "gauge", "Open sessions.", "sessions"),
        ("stdio_bus_calls_in_flight", "gauge", "Requests that wait for their answers.", "calls"),
        ("stdio_bus_worker_restarts_total", "counter", "Restarts of workers since the start.", "restarts_total"),
    ] {
        text.family(name, kind, help);
        for pool in pools {
            text.sample(name, &[("pool", &id(pool))], pool[key].as_f64());
        }
    }
    text.family("stdio_bus_workers", "gauge", "Workers by their state.");
    for pool in pools {
        let workers = list(&pool["workers"]);
        let mut states: Vec<&str> = workers.iter().filter_map(|worker| worker["state"].as_str()).collect();
        // A pool without a worker that is up can be alerted on only if it says 0.
        states.push("up");
        states.sort_unstable();
        states.dedup();
        for state in states {
            let count = workers.iter().filter(|worker| worker["state"] == state).count();
            text.sample("stdio_bus_workers", &[("pool", &id(pool)), ("state", state)], Some(count as f64));
        }
    }
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: Option<f64>) {
        let Some(value) = value else { return };
        let labels =
            labels.iter().map(|(key, text)| format!("{key}=\"{}\"", escape(text))).collect::<Vec<_>>();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: &Value) {
        self.family(name, kind, help);
        self.sample(name, &[], value.as_f64());
    }

    /// A sample for each key of an object.
    fn map(&mut self, name: &str, kind: &str, help: &str, label: &str, values: &Value) {
        self.family(name, kind, help);
        for (key, value) in values.as_object().into_iter().flatten() {
            self.sample(name, &[(label, key)], value.as_f64());
        }
    }
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_status_becomes_families_of_samples() {
        let text = describe(&json!({
            "version": "0.1.0", "uptime_sec": 7, "clients": 2, "held_bytes": 5_000_000_000_u64,
            "limits": {"clients": 10_000}, "refused": {"busy": 3}, "skipped": {},
            "counters": {"requests": 9, "answers": 8, "errors": 1, "bytes_in": 10, "bytes_out": 20},
            "pools": [{"id": "a\"b", "sessions": 4, "calls": 1, "restarts": 2, "restarts_total": 9,
                "workers": [{"state": "resting"}, {"state": "resting"}]}],
        }));
        for line in [
            r#"stdio_bus_build_info{version="0.1.0"} 1"#,
            "stdio_bus_up_seconds 7",
            "stdio_bus_held_bytes 5000000000",
            r#"stdio_bus_limit{of="clients"} 10000"#,
            r#"stdio_bus_sessions{pool="a\"b"} 4"#,
            r#"stdio_bus_workers{pool="a\"b",state="resting"} 2"#,
            r#"stdio_bus_workers{pool="a\"b",state="up"} 0"#,
            r#"stdio_bus_worker_restarts_total{pool="a\"b"} 9"#,
            r#"stdio_bus_answers_total{outcome="result"} 7"#,
            r#"stdio_bus_refused_total{reason="busy"} 3"#,
            r#"stdio_bus_bytes_total{direction="out"} 20"#,
        ] {
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
    }

    #[test]
    fn every_sample_has_a_family_and_unusual_status_is_harmless() {
        for status in [json!(null), json!({ "pools": 7, "counters": [], "limits": "x" }), json!({})] {
            let text = describe(&status);
            assert!(
                text.lines().all(|line| line.starts_with("# ") || line.starts_with("stdio_bus_")),
                "{text}"
            );
        }
        let text = describe(&json!({}));
        let names: Vec<_> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let mut unique = names.clone();
        unique.dedup();
        assert_eq!(names, unique);
    }
}
