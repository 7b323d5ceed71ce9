//! What `top` shows and what keys do, without a terminal.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;
use serde_json::{Value, json};

use super::draw;
use super::model::{Command, Item, KeyOutcome, Mode, Model};
use super::theme::Theme;
use crate::picture;

/// A model of a busy bus after this many samples.
pub(super) fn busy_model(samples: u32) -> Model {
    let mut model = Model::new(1.0);
    let (mut requests, mut lines_in, mut lines_out) = (90_000, 400_000, 410_000);
    for sample in 0..samples {
        let wave = (f64::from(sample) / 9.0).sin() * 0.5 + (f64::from(sample) / 3.7).cos() * 0.3 + 1.0;
        requests += (wave * 24.0) as u64;
        lines_in += (wave * 310.0) as u64;
        lines_out += (wave * 320.0 + f64::from(sample % 7) * 9.0) as u64;
        let mut status = status();
        status["uptime_sec"] = json!(11_520 + sample);
        status["counters"] = json!({
            "requests": requests, "lines_in": lines_in, "lines_out": lines_out,
            "bytes_in": lines_in * 410, "bytes_out": lines_out * 395,
        });
        status["pools"][0]["workers"][0]["lines_in"] = json!(lines_in / 3);
        model.update(&status, Some(&sessions()), sample.into());
    }
    model
}

fn status() -> Value {
    let worker = |number: u32, state: &str, sessions: u32, calls: u32, pid: Value| {
        json!({ "worker": number, "state": state, "pid": pid, "sessions": sessions, "calls": calls, "clients": calls,
            "rss_bytes": pid.as_u64().map(|pid| pid * 80_000), "cpu_percent": pid.as_u64().map(|pid| pid % 13),
            "restarts": 0, "queued_bytes": 0, "up_sec": 11_500, "lines_in": 0, "lines_out": 4_120,
            "last_exit": null, "last_words": null })
    };
    let mut resting = worker(2, "resting", 0, 0, Value::Null);
    resting["restarts"] = json!(3);
    resting["last_exit"] = json!("signal 9");
    resting["last_words"] = json!("killed by signal 9; stderr: out of memory");
    let mut slow = worker(0, "up", 14, 9, json!(4127));
    slow["queued_bytes"] = json!(1_843_200);
    let latency =
        |p50: u64| json!({ "p50": p50, "p90": p50 * 4, "p99": p50 * 11, "max": p50 * 26, "count": 1412 });
    json!({
        "bus": "stdio-bus", "version": "0.1.0", "uptime_sec": 11_520, "stopping": false,
        "clients": 17, "calls": 13, "sessions": 41, "held_bytes": 94_371_840,
        "listening": ["tcp://127.0.0.1:9000", "unix:///run/bus.sock"],
        "limits": { "clients": 1024, "calls": 65_536, "held_bytes": 268_435_456 },
        "latency_us": latency(7_400),
        "refused": { "busy": 12, "unknown_session": 3 }, "skipped": { "stray_lines": 7 },
        "pools": [
            { "id": "claude", "mode": "shared", "instances": 3, "max_instances": 4, "max_sessions": 16,
              "latency_us": latency(812_000), "rates": { "requests": 4.2 },
              "workers": [worker(0, "up", 10, 2, json!(4121)), worker(1, "up", 12, 1, json!(4122)), resting] },
            { "id": "codex", "mode": "dedicated", "instances": 1, "max_instances": 8, "max_sessions": 16,
              "latency_us": latency(96_000), "rates": { "requests": 1.1 }, "workers": [slow] },
            { "id": "echo", "mode": "shared", "instances": 2, "max_instances": 2, "max_sessions": 64,
              "latency_us": latency(180), "rates": { "requests": 18.9 },
              "workers": [worker(0, "up", 3, 1, json!(4130)), worker(1, "up", 2, 0, json!(4131))] },
        ],
        "counters": { "requests": 90_000 },
    })
}

fn sessions() -> Value {
    let session = |name: &str, pool: &str, worker: u32, client: Value, age: u32, idle: u32, calls: u32| {
        let state = if client.is_null() { "kept" } else { "live" };
        json!({ "session": name, "pool": pool, "worker": worker, "client": client, "age_sec": age,
            "idle_sec": idle, "calls": calls, "questions": 0, "state": state })
    };
    let mut all = vec![
        session("s12", "claude", 0, json!("zed"), 7_301, 0, 1),
        session("s15", "claude", 1, json!("jetbrains"), 5_020, 2, 1),
        session("s22", "codex", 0, json!("neovim"), 1_845, 61, 0),
        session("s31", "claude", 0, Value::Null, 640, 212, 0),
        session("s40", "echo", 0, json!("#57"), 12, 3, 1),
    ];
    all[0]["questions"] = json!(1);
    (all[0]["title"], all[0]["folder"]) = (json!("Fix the build"), json!("/srv/shop"));
    (all[1]["title"], all[1]["folder"]) = (json!("Why is the login slow?"), json!("/srv/web"));
    all[0]["guests"] =
        json!([{ "client": "phone", "role": "control" }, { "client": "wall", "role": "observe" }]);
    let others = [("claude", 0, 8), ("claude", 1, 11), ("codex", 0, 13), ("echo", 0, 2), ("echo", 1, 2)];
    for (pool, worker, count) in others {
        for _ in 0..count {
            let number = 37 + all.len() as u32;
            let (age, idle) = (900 - number * 8, number * 3);
            all.push(session(&format!("s{number}"), pool, worker, json!("script"), age, idle, 0));
        }
    }
    json!({ "sessions": all })
}

fn drawn(model: &Model, columns: u16, rows: u16, colour: bool) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| draw::screen(frame, model, Theme { colour })).unwrap();
    terminal.backend().buffer().clone()
}

fn shown(model: &Model, columns: u16, rows: u16) -> String {
    let buffer = drawn(model, columns, rows, true);
    let lines = (0..rows).map(|y| {
        let line: String = (0..columns).map(|x| buffer[(x, y)].symbol()).collect();
        line.trim_end().to_owned() + "\n"
    });
    lines.collect()
}

fn press(model: &mut Model, codes: &[KeyCode]) {
    for code in codes {
        assert_eq!(model.press(KeyEvent::new(*code, KeyModifiers::NONE)), KeyOutcome::Stay);
    }
}

#[test]
fn the_screen_shows_the_whole_status() {
    let screen = shown(&busy_model(60), 126, 36);
    for words in [
        "stdio-bus 0.1.0 up 3h 12m  tcp://127.0.0.1:9000 unix:///run/bus.sock",
        "clients 17/1024  sessions 41  calls 13  held ███▋······ 90.0 MiB/256.0 MiB",
        "refused busy 12",
        "skipped stray_lines 7",
        "▸ claude     2 of 3",
        "    2        resting",
        "▸ codex      1 of 1     ████████▊·   14     9  314M   6%    1.1   96 ms   1.1 s        0   1.8 MiB",
        "s12     claude/0     live      1    1      0s   2h 1m zed +2         Fix the build          /srv/shop",
        "s31     claude/0     kept",
        "? help  q quit  Enter detail  Tab sessions  R restart  s sort  / filter",
        "every 1 s",
    ] {
        assert!(screen.contains(words), "{words}\n{screen}");
    }
}

#[test]
fn a_status_with_few_fields_is_shown() {
    let mut model = Model::new(0.5);
    for snapshot in ["null", "7", "[]", "{}", r#"{"pools":{},"counters":[],"limits":7,"latency_us":"x"}"#] {
        model.update(&serde_json::from_str(snapshot).unwrap(), None, 1.0);
        assert!(shown(&model, 80, 24).contains("clients -  sessions -  calls -"), "{snapshot}");
        press(&mut model, &[KeyCode::Down, KeyCode::Enter, KeyCode::Tab, KeyCode::Esc]);
    }
    let today = json!({ "version": "0.1.0", "uptime_sec": 1, "clients": 1, "calls": 0, "sessions": 0, "held_bytes": 0,
        "pools": [{ "id": "e\u{1b}[2J", "mode": "shared", "workers": [{ "worker": 0, "state": "up", "pid": 7 }] }],
        "counters": { "requests": 3, "stray_lines": 2 } });
    model.update(&today, None, 2.0);
    let screen = shown(&model, 110, 24);
    assert!(screen.contains("▸ e?[2J") && screen.contains("1 of 1"), "{screen}");
    assert!(screen.contains("skipped stray_lines 2") && !screen.contains("sessions ("), "{screen}");
}

#[test]
fn any_terminal_size_can_be_drawn() {
    let mut model = busy_model(10);
    for open in [false, true] {
        model.is_open = open;
        for (columns, rows) in [(1, 1), (2, 60), (10, 3), (43, 9), (60, 18), (99, 17), (250, 2), (300, 90)] {
            drawn(&model, columns, rows, true);
        }
    }
    let screen = shown(&busy_model(3), 40, 17);
    assert!(screen.contains("▸ echo") && !screen.contains("traffic"), "{screen}");
}

#[test]
fn the_selected_row_is_followed_and_shown_in_detail() {
    let mut model = busy_model(5);
    assert_eq!(model.selected(), Some(&Item::Pool("claude".into())));
    press(&mut model, &[KeyCode::Down, KeyCode::Down, KeyCode::Down, KeyCode::Enter]);
    let screen = shown(&model, 100, 30);
    for words in ["worker claude/2", "resting", "signal 9", "stderr: out of memory", "Esc back"] {
        assert!(screen.contains(words), "{words}\n{screen}");
    }
    // A new pool above it changes nothing.
    let mut status = status();
    let pools = status["pools"].as_array_mut().unwrap();
    pools.insert(0, json!({ "id": "new", "workers": [] }));
    model.update(&status, Some(&sessions()), 9.0);
    assert_eq!(model.selected(), Some(&Item::Worker("claude".into(), 2)));
    assert!(model.is_open);
    // When the worker disappears, its neighbour is selected and the detail view closes.
    status["pools"].as_array_mut().unwrap().remove(1);
    model.update(&status, Some(&sessions()), 10.0);
    assert!(!model.is_open && model.selected().is_some());
}

#[test]
fn tab_goes_to_the_sessions_and_back() {
    let mut model = busy_model(5);
    press(&mut model, &[KeyCode::Tab, KeyCode::Down, KeyCode::Enter]);
    let screen = shown(&model, 100, 30);
    assert!(screen.contains("session s15") && screen.contains("jetbrains"), "{screen}");
    assert!(screen.contains("1h 23m ago"), "{screen}");
    press(&mut model, &[KeyCode::Esc, KeyCode::Up]);
    let narrow = shown(&model, 84, 30);
    assert!(narrow.contains("zed +2") && !narrow.contains("phone"), "{narrow}");
    press(&mut model, &[KeyCode::Enter]);
    let screen = shown(&model, 84, 30);
    assert!(screen.contains("guests         phone, wall (observes)"), "{screen}");
    assert!(screen.contains("questions      1"), "{screen}");
    press(&mut model, &[KeyCode::Esc, KeyCode::Tab, KeyCode::Enter]);
    let screen = shown(&model, 100, 30);
    assert!(screen.contains("pool claude") && screen.contains("its sessions (22)"), "{screen}");
    press(&mut model, &[KeyCode::End]);
    assert_eq!(model.selected(), Some(&Item::Session("s77".into())));
    press(&mut model, &[KeyCode::PageDown, KeyCode::Home, KeyCode::Up]);
    assert_eq!(model.selected(), Some(&Item::Pool("claude".into())));
}

#[test]
fn rows_are_sorted_filtered_and_acted_upon() {
    let mut model = busy_model(3);
    let first_pool = |model: &Model| model.snapshot.pools[0].id.clone();
    press(&mut model, &[KeyCode::Char('s')]);
    assert!(shown(&model, 120, 30).contains("pools and workers by memory"));
    assert_eq!(first_pool(&model), "echo");
    press(&mut model, &[KeyCode::Char('s'), KeyCode::Char('s'), KeyCode::Char('s')]);
    press(&mut model, &[KeyCode::Tab, KeyCode::Char('s'), KeyCode::Char('s')]);
    let screen = shown(&model, 120, 40);
    assert!(screen.contains("sessions (41) by last heard"), "{screen}");
    press(&mut model, &[KeyCode::Char('/'), KeyCode::Char('s'), KeyCode::Char('H'), KeyCode::Char('o')]);
    assert!(shown(&model, 120, 40).contains("only rows with: sHo▏"));
    press(&mut model, &[KeyCode::Enter]);
    let screen = shown(&model, 120, 40);
    assert!(screen.contains("sessions (1)") && screen.contains("only \"sHo\""), "{screen}");
    press(&mut model, &[KeyCode::End, KeyCode::Char('x')]);
    assert!(shown(&model, 120, 40).contains("close session s12? y yes"));
    press(&mut model, &[KeyCode::Char('n'), KeyCode::Char('x')]);
    let yes = KeyEvent::new(KeyCode::Char('y'), KeyModifiers::NONE);
    assert_eq!(model.press(yes), KeyOutcome::Do(Command::Close("s12".into())));
    model.remark = Some("s12 is closed".to_owned());
    assert!(shown(&model, 120, 40).contains(" s12 is closed"));
    press(&mut model, &[KeyCode::Esc, KeyCode::Home, KeyCode::Down, KeyCode::Char('R')]);
    assert!(shown(&model, 120, 40).contains("restart claude/0? y yes"));
    assert_eq!(model.press(yes), KeyOutcome::Do(Command::Restart("claude".into(), Some(0))));
    press(&mut model, &[KeyCode::Char('?')]);
    let screen = shown(&model, 80, 24);
    assert!(screen.contains("╭ help ") && screen.contains("close the selected session"), "{screen}");
    press(&mut model, &[KeyCode::Char('q')]);
    assert_eq!(model.mode, Mode::Look, "any key closes the help");
}

#[test]
fn columns_fit_from_40_to_250_cells() {
    let mut model = busy_model(3);
    let mut status = status();
    status["pools"][0]["id"] = json!("my-very-long-pool-name-of-a-team");
    status["pools"].as_array_mut().unwrap().push(json!({ "id": "cold", "workers": [] }));
    model.update(&status, Some(&sessions()), 9.0);
    let narrow = shown(&model, 40, 20);
    assert!(
        narrow.contains(" ? help  q quit  Enter detail  every 1 s") || narrow.contains("? help  q quit"),
        "{narrow}"
    );
    assert!(narrow.lines().all(|line| line.chars().count() <= 40), "{narrow}");
    let wide = shown(&model, 250, 40);
    assert!(wide.contains("▸ my-very-long-pool-name-of-a-team"), "{wide}");
    assert!(wide.contains("phone, wall (observes)"), "{wide}");
    let at = wide.lines().position(|line| line.contains("▸ cold")).unwrap() as u16;
    let buffer = drawn(&model, 250, 40, true);
    assert!((0..250).all(|x| buffer[(x, at)].fg != Color::Green), "a pool without a process is not well");
}

#[test]
fn q_and_ctrl_c_quit() {
    let mut model = busy_model(1);
    let key = |code, with| KeyEvent::new(code, with);
    assert_eq!(model.press(key(KeyCode::Char('c'), KeyModifiers::NONE)), KeyOutcome::Stay);
    assert_eq!(model.press(key(KeyCode::Char('c'), KeyModifiers::CONTROL)), KeyOutcome::Quit);
    assert_eq!(model.press(key(KeyCode::Char('q'), KeyModifiers::NONE)), KeyOutcome::Quit);
}

#[test]
fn a_lost_bus_is_shown_until_it_is_back() {
    let mut model = busy_model(30);
    model.on_lost("no bus answers at tcp://127.0.0.1:9000".to_owned());
    let screen = shown(&model, 120, 30);
    assert!(screen.contains("bus gone, trying again (no bus answers at tcp://127.0.0.1:9000)"), "{screen}");
    assert!(screen.contains("▸ claude"), "what was known last stays\n{screen}");
    let mut young = status();
    young["uptime_sec"] = json!(1);
    model.update(&young, None, 60.0);
    assert!(!shown(&model, 120, 30).contains("bus gone"));
    assert_eq!(model.history.rates("requests").count(), 0, "a new bus counts anew");
}

#[test]
fn without_colour_no_cell_is_coloured() {
    let plain = drawn(&busy_model(20), 120, 36, false);
    assert!(plain.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    let coloured = drawn(&busy_model(20), 120, 36, true);
    assert!(coloured.content.iter().any(|cell| cell.fg == Color::Green));
}

#[test]
fn the_pictures_of_top_in_the_docs_are_current() {
    let mut model = busy_model(90);
    picture::is_current("top.svg", &drawn(&model, 116, 31, true));
    press(&mut model, &[KeyCode::Down, KeyCode::Enter]);
    picture::is_current("top-worker.svg", &drawn(&model, 116, 31, true));
}
