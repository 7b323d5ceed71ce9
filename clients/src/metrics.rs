//! The status of a bus as Prometheus text, version 0.0.4.
//!
//! No label is a session, a client or a method: clients choose those, and each would be a time series of its own.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

use crate::status::list;

/// The media type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All figures of what `_bus/status` answers. A figure that is not there is left out.
pub fn describe(status: &Value) -> String {
    let mut text = Text::default();
    let [version, commit] = ["version", "commit"].map(|key| status[key].as_str().unwrap_or_default());
    text.family("stdio_bus_build_info", "gauge", "The version of the bus.");
    text.sample("stdio_bus_build_info", &[("version", version), ("commit", commit)], Some(1.0));
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
    let pools = list(&status["pools"]);
    sessions(&mut text, pools, &status["lost"]);
    of_pools(&mut text, pools);
    workers(&mut text, pools);
    nodes(&mut text, pools);
    durations(&mut text, pools);
    text.map("stdio_bus_refused_total", "counter", "Errors of the bus itself.", "reason", &status["refused"]);
    text.map(
        "stdio_bus_lines_skipped_total",
        "counter",
        "Lines not passed on.",
        "reason",
        &status["skipped"],
    );
    traffic(&mut text, &status["sides"]);
    link(&mut text, &status["link"]);
    used(&mut text, &status["usage"]);
    notices(&mut text, &status["notify"]["counted"]);
    text.0
}

fn id(pool: &Value) -> &str {
    pool["id"].as_str().unwrap_or_default()
}

/// A session that no process has open is of no pool before it is opened again.
fn sessions(text: &mut Text, pools: &[Value], lost: &Value) {
    text.family(
        "stdio_bus_sessions",
        "gauge",
        "Sessions: live, kept without an owner, or without a process.",
    );
    for pool in pools {
        let kept = pool["kept"].as_f64();
        let live = pool["sessions"].as_f64().map(|open| open - kept.unwrap_or_default());
        for (state, count) in [("live", live), ("kept", kept)] {
            text.sample("stdio_bus_sessions", &[("pool", id(pool)), ("state", state)], count);
        }
    }
    text.sample("stdio_bus_sessions", &[("state", "lost")], lost.as_f64());
}

fn of_pools(text: &mut Text, pools: &[Value]) {
    for (name, kind, help, key) in [
        ("stdio_bus_calls_in_flight", "gauge", "Requests that wait for their answers.", "calls"),
        (
            "stdio_bus_worker_restarts_total",
            "counter",
            "Restarts of workers since the start.",
            "restarts_total",
        ),
        ("stdio_bus_requests_total", "counter", "Requests of clients that a pool was given.", "requests"),
    ] {
        text.family(name, kind, help);
        for pool in pools {
            text.sample(name, &[("pool", id(pool))], pool[key].as_f64());
        }
    }
    text.family("stdio_bus_answers_total", "counter", "Answers of agents to clients.");
    for pool in pools {
        let errors = pool["errors"].as_f64();
        let results = pool["answer_us"]["count"].as_f64().zip(errors).map(|(all, errors)| all - errors);
        for (outcome, count) in [("result", results), ("error", errors)] {
            text.sample("stdio_bus_answers_total", &[("pool", id(pool)), ("outcome", outcome)], count);
        }
    }
}

fn workers(text: &mut Text, pools: &[Value]) {
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
            text.sample("stdio_bus_workers", &[("pool", id(pool)), ("state", state)], Some(count as f64));
        }
    }
}

/// How much each node has of this bus, in the pools that have nodes.
fn nodes(text: &mut Text, pools: &[Value]) {
    for (name, help, counted) in [
        ("stdio_bus_node_workers", "Workers that are up at a node.", None),
        ("stdio_bus_node_sessions", "Open sessions at a node.", Some("sessions")),
    ] {
        text.family(name, "gauge", help);
        for pool in pools {
            let mut counts: BTreeMap<&str, f64> = BTreeMap::new();
            for worker in list(&pool["workers"]) {
                let Some(node) = worker["node"].as_str() else { continue };
                // A node without a worker that is up can be alerted on only if it says 0.
                *counts.entry(node).or_default() += match counted {
                    Some(key) => worker[key].as_f64().unwrap_or_default(),
                    None => f64::from(u8::from(worker["state"] == "up")),
                };
            }
            for (node, count) in counts {
                text.sample(name, &[("pool", id(pool)), ("node", node)], Some(count));
            }
        }
    }
}

/// How long agents took to answer clients, as a histogram.
fn durations(text: &mut Text, pools: &[Value]) {
    let name = "stdio_bus_request_duration_seconds";
    text.family(name, "histogram", "How long agents took to answer requests of clients.");
    for pool in pools {
        let (pool, took) = (("pool", id(pool)), &pool["answer_us"]);
        let bucket = format!("{name}_bucket");
        for pair in list(&took["buckets"]) {
            let Some(le) = pair[0].as_f64() else { continue };
            text.sample(&bucket, &[pool, ("le", &(le / 1e6).to_string())], pair[1].as_f64());
        }
        text.sample(&bucket, &[pool, ("le", "+Inf")], took["count"].as_f64());
        text.sample(&format!("{name}_sum"), &[pool], took["sum"].as_f64().map(|us| us / 1e6));
        text.sample(&format!("{name}_count"), &[pool], took["count"].as_f64());
    }
}

fn traffic(text: &mut Text, sides: &Value) {
    for (name, help, key) in [
        ("stdio_bus_bytes_total", "Bytes read and written.", "bytes"),
        ("stdio_bus_lines_total", "Lines read and written.", "lines"),
    ] {
        text.family(name, "counter", help);
        for side in ["client", "worker"] {
            for direction in ["in", "out"] {
                let count = sides[side][format!("{key}_{direction}")].as_f64();
                text.sample(name, &[("side", side), ("direction", direction)], count);
            }
        }
    }
}

/// What a bus with a link to a cluster knows of it. The link tells it every few seconds what its pipes have counted.
fn link(text: &mut Text, link: &Value) {
    let Some(state) = link["state"].as_str() else { return };
    text.family("stdio_bus_link_up", "gauge", "Whether the link to the cluster is up.");
    text.sample("stdio_bus_link_up", &[], Some(f64::from(u8::from(state == "up"))));
    let help = "Restarts of the link to the cluster.";
    text.one("stdio_bus_link_restarts_total", "counter", help, &link["restarts"]);
    let counted = &link["counted"];
    let rtt = counted["rtt_us"].as_f64().map(|us| us / 1e6);
    let count = |name: &str| counted[name].as_f64();
    for (name, kind, help, value) in [
        ("pipes", "gauge", "Open pipes of edges.", count("pipes")),
        ("frames_total", "counter", "Frames of pipes, in both directions.", count("frames")),
        ("resent_frames_total", "counter", "Frames that were sent again.", count("resent_frames")),
        ("stalls_total", "counter", "How often a pipe heard nothing of its edge for long.", count("stalls")),
        ("rtt_seconds", "gauge", "The longest round trip of an open pipe.", rtt),
    ] {
        let name = format!("stdio_bus_link_{name}");
        text.family(&name, kind, help);
        text.sample(&name, &[("node", counted["node"].as_str().unwrap_or_default())], value);
    }
}

/// What agents have reported, where what is said is kept.
fn used(text: &mut Text, usage: &Value) {
    let pools = list(&usage["pools"]);
    for (name, help, label, key) in [
        ("stdio_bus_tokens_total", "Tokens that agents have reported.", "kind", "tokens"),
        ("stdio_bus_cost_total", "Cost that agents have reported.", "currency", "cost"),
    ] {
        if !pools.is_empty() {
            text.family(name, "counter", help);
        }
        for pool in pools {
            let named = ("pool", pool["pool"].as_str().unwrap_or_default());
            for (kind, amount) in pool[key].as_object().into_iter().flatten() {
                text.sample(name, &[named, (label, kind)], amount.as_f64());
            }
        }
    }
}

/// What people who are away were told, where anybody is.
fn notices(text: &mut Text, counted: &Value) {
    if !counted.is_object() {
        return;
    }
    let name = "stdio_bus_notices_total";
    text.family(name, "counter", "Notices that webhooks have taken, have not taken, or were not sent.");
    for result in ["sent", "failed", "dropped"] {
        text.sample(name, &[("result", result)], counted[result].as_f64());
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
            "version": "0.1.0", "commit": "abc", "uptime_sec": 7, "clients": 2, "held_bytes": 5_000_000_000_u64,
            "limits": {"clients": 10_000}, "refused": {"busy": 3}, "skipped": {}, "lost": 6,
            "sides": {"client": {"bytes_in": 10, "lines_out": 4}, "worker": {"bytes_out": 20}},
            "pools": [{"id": "a\"b", "sessions": 4, "kept": 3, "calls": 1, "restarts": 2, "restarts_total": 9,
                "requests": 12, "errors": 1,
                "answer_us": {"count": 8, "sum": 2_500_000, "buckets": [[1024, 5], [4_194_304, 7]]},
                "workers": [{"state": "resting", "node": "n2", "sessions": 0},
                    {"state": "resting"}, {"state": "up", "node": "n1", "sessions": 3}]}],
        }));
        for line in [
            r#"stdio_bus_build_info{version="0.1.0",commit="abc"} 1"#,
            "stdio_bus_up_seconds 7",
            "stdio_bus_held_bytes 5000000000",
            r#"stdio_bus_limit{of="clients"} 10000"#,
            r#"stdio_bus_sessions{pool="a\"b",state="live"} 1"#,
            r#"stdio_bus_sessions{pool="a\"b",state="kept"} 3"#,
            r#"stdio_bus_sessions{state="lost"} 6"#,
            r#"stdio_bus_workers{pool="a\"b",state="resting"} 2"#,
            r#"stdio_bus_workers{pool="a\"b",state="up"} 1"#,
            r#"stdio_bus_node_workers{pool="a\"b",node="n1"} 1"#,
            r#"stdio_bus_node_workers{pool="a\"b",node="n2"} 0"#,
            r#"stdio_bus_node_sessions{pool="a\"b",node="n1"} 3"#,
            r#"stdio_bus_worker_restarts_total{pool="a\"b"} 9"#,
            r#"stdio_bus_requests_total{pool="a\"b"} 12"#,
            r#"stdio_bus_answers_total{pool="a\"b",outcome="result"} 7"#,
            r#"stdio_bus_answers_total{pool="a\"b",outcome="error"} 1"#,
            "# TYPE stdio_bus_request_duration_seconds histogram",
            r#"stdio_bus_request_duration_seconds_bucket{pool="a\"b",le="0.001024"} 5"#,
            r#"stdio_bus_request_duration_seconds_bucket{pool="a\"b",le="4.194304"} 7"#,
            r#"stdio_bus_request_duration_seconds_bucket{pool="a\"b",le="+Inf"} 8"#,
            r#"stdio_bus_request_duration_seconds_sum{pool="a\"b"} 2.5"#,
            r#"stdio_bus_request_duration_seconds_count{pool="a\"b"} 8"#,
            r#"stdio_bus_refused_total{reason="busy"} 3"#,
            r#"stdio_bus_bytes_total{side="client",direction="in"} 10"#,
            r#"stdio_bus_bytes_total{side="worker",direction="out"} 20"#,
            r#"stdio_bus_lines_total{side="client",direction="out"} 4"#,
        ] {
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
        assert!(!text.contains("stdio_bus_link"), "it has no link");
    }

    #[test]
    fn what_was_used_is_told_by_pool() {
        let pool = json!({ "pool": "claude", "tokens": { "input": 5 }, "cost": { "USD": 0.25 } });
        let text = describe(&json!({ "usage": { "pools": [pool] } }));
        for line in [
            "# TYPE stdio_bus_tokens_total counter",
            r#"stdio_bus_tokens_total{pool="claude",kind="input"} 5"#,
            r#"stdio_bus_cost_total{pool="claude",currency="USD"} 0.25"#,
        ] {
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
        assert!(!describe(&json!({})).contains("tokens_total"));
    }

    #[test]
    fn notices_are_told_by_what_became_of_them() {
        let counted = json!({ "sent": 3, "failed": 2, "dropped": 0, "targets": [] });
        let text = describe(&json!({ "notify": { "state": "up", "counted": counted } }));
        for (result, count) in [("sent", 3), ("failed", 2), ("dropped", 0)] {
            let line = format!(r#"stdio_bus_notices_total{{result="{result}"}} {count}"#);
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
        for none in [json!({}), json!({ "notify": { "state": "starting", "counted": null } })] {
            assert!(!describe(&none).contains("notices"));
        }
    }

    #[test]
    fn a_link_to_a_cluster_is_told_of() {
        for (state, up) in [("up", 1), ("resting", 0)] {
            let counted = json!({
                "node": "n17", "pipes": 2, "frames": 9, "resent_frames": 1, "stalls": 0, "rtt_us": 1500,
            });
            let text = describe(&json!({ "link": { "state": state, "restarts": 3, "counted": counted } }));
            for line in [
                &*format!("stdio_bus_link_up {up}"),
                "stdio_bus_link_restarts_total 3",
                r#"stdio_bus_link_pipes{node="n17"} 2"#,
                r#"stdio_bus_link_frames_total{node="n17"} 9"#,
                r#"stdio_bus_link_resent_frames_total{node="n17"} 1"#,
                r#"stdio_bus_link_stalls_total{node="n17"} 0"#,
                r#"stdio_bus_link_rtt_seconds{node="n17"} 0.0015"#,
            ] {
                assert!(text.lines().any(|one| one == line), "{line}\n{text}");
            }
        }
    }

    /// The names of metrics in a text.
    fn names(text: &str) -> Vec<&str> {
        let starts = text.match_indices("stdio_bus_").map(|(at, _)| &text[at..]);
        let is_part = |letter: char| letter.is_ascii_lowercase() || letter == '_';
        starts.map(|rest| rest.split(|letter| !is_part(letter)).next().unwrap_or_default()).collect()
    }

    #[test]
    fn rules_and_dashboard_name_only_metrics_that_are_printed() {
        let used = json!({ "pool": "claude", "tokens": { "input": 5 }, "cost": { "USD": 0.25 } });
        let pool = json!({ "id": "a", "sessions": 4, "kept": 3, "calls": 1, "restarts_total": 9, "requests": 12,
            "errors": 1, "answer_us": { "count": 8, "sum": 2, "buckets": [[1024, 5]] }, "workers": [] });
        let text = describe(&json!({
            "uptime_sec": 7, "clients": 2, "tracers": 0, "held_bytes": 5, "limits": { "held_bytes": 10 },
            "refused": { "busy": 3 }, "skipped": { "blank": 1 }, "lost": 6, "pools": [pool],
            "sides": { "client": { "bytes_in": 10, "lines_in": 4 } }, "usage": { "pools": [used] },
        }));
        let printed: Vec<&str> = text.lines().filter_map(|line| line.split(['{', ' ']).next()).collect();
        for (file, content) in [
            ("alerts.yml", include_str!("../../ops/prometheus/alerts.yml")),
            ("alerts_test.yml", include_str!("../../ops/prometheus/alerts_test.yml")),
            ("stdio-bus.json", include_str!("../../ops/grafana/stdio-bus.json")),
        ] {
            let names = names(content);
            assert!(names.len() >= 5, "{file}: {names:?}");
            for name in names {
                assert!(printed.contains(&name), "{file} names {name}, which is none of {printed:?}");
            }
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
