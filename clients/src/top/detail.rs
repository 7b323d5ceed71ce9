//! The detail view of one pool, worker or session.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::model::{Item, Model};
use super::snapshot::{Latency, Pool, Session, Worker};
use super::tables::{block, sessions_table};
use super::theme::{Theme, micros, number, or_dash};
use crate::status::{byte_size, duration};

/// Fits the longest name.
const NAME_WIDTH: usize = 14;

pub(super) fn draw(frame: &mut Frame, area: Rect, model: &Model, item: &Item, theme: Theme) {
    let (title, lines, sessions) = match item {
        Item::Pool(id) => {
            let lines = model.snapshot.pool(id).map(|pool| pool_facts(pool, theme));
            (format!("pool {id}"), lines, sessions_where(model, |session| session.pool.as_ref() == Some(id)))
        }
        Item::Worker(id, number) => {
            let lines =
                model.worker(id, *number).map(|(pool, worker)| worker_facts(model, pool, worker, theme));
            let belongs =
                |session: &Session| session.pool.as_ref() == Some(id) && session.worker == Some(*number);
            (format!("worker {id}/{number}"), lines, sessions_where(model, belongs))
        }
        Item::Session(name) => {
            let session = model.sessions().iter().find(|session| session.name == *name);
            (format!("session {name}"), session.map(|session| session_facts(session, theme)), Vec::new())
        }
    };
    let lines = lines.unwrap_or_default();
    let needed = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX);
    let below_rows = if sessions.is_empty() { 0 } else { area.height.saturating_sub(needed) };
    let [facts, below] = Layout::vertical([Constraint::Fill(1), Constraint::Length(below_rows)]).areas(area);
    let text = Paragraph::new(lines).wrap(Wrap { trim: false }).block(block(&title, theme));
    frame.render_widget(text, facts);
    if !sessions.is_empty() && below.height >= 3 {
        sessions_table(frame, below, &format!("its sessions ({})", sessions.len()), &sessions, None, theme);
    }
}

fn sessions_where(model: &Model, belongs: impl Fn(&Session) -> bool) -> Vec<&Session> {
    model.sessions().iter().filter(|session| belongs(session)).collect()
}

fn pool_facts(pool: &Pool, theme: Theme) -> Vec<Line<'static>> {
    let mut facts = Facts { theme, lines: Vec::new() };
    facts.add("mode", &pool.mode);
    facts.add(
        "instances",
        format!("{}, at most {}", or_dash(pool.instances.current), or_dash(pool.instances.max)),
    );
    if pool.removed {
        facts.add_styled("removed", "it goes when nobody needs it any more", theme.warning());
    }
    let states = ["up", "starting", "resting", "broken"].map(|state| (state, pool.count_in_state(state)));
    let states =
        states.iter().filter(|(_, count)| *count > 0).map(|(state, count)| format!("{count} {state}"));
    facts.add("workers", states.collect::<Vec<_>>().join(", "));
    let sessions = pool.sum(|worker| worker.sessions);
    let limit_note = pool.max_sessions.map(|max| format!(", at most {max} per worker")).unwrap_or_default();
    facts.add("sessions", format!("{sessions}{limit_note}"));
    facts.add("calls", pool.sum(|worker| worker.calls).to_string());
    facts.add(
        "requests",
        pool.requests_rate.map_or("-".to_owned(), |rate| format!("{} per second", number(rate))),
    );
    facts.add("latency", pool.latency.map_or("-".to_owned(), latency_text));
    facts.add("restarts", pool.sum(|worker| worker.restarts).to_string());
    let why = pool.last_recycled.as_ref().map(|why| format!(", the last one: {why}")).unwrap_or_default();
    facts.add("recycled", format!("{}{why}", or_dash(pool.recycled)));
    facts.add("queued", byte_size(pool.sum(|worker| worker.queued_bytes)));
    facts.lines
}

fn worker_facts(model: &Model, pool: &Pool, worker: &Worker, theme: Theme) -> Vec<Line<'static>> {
    let mut facts = Facts { theme, lines: Vec::new() };
    let up = worker.up_sec.map(|up| format!(" for {}", duration(up))).unwrap_or_default();
    facts.add_styled("state", format!("{}{up}", worker.state), theme.state(&worker.state));
    facts.add("pid", or_dash(worker.pid));
    facts.add("memory", or_dash(worker.rss_bytes.map(byte_size)));
    facts.add("CPU", or_dash(worker.cpu_percent.map(|percent| format!("{percent:.1}%"))));
    let max = pool.max_sessions.map(|max| format!(" of {max}")).unwrap_or_default();
    facts.add("sessions", format!("{}{max}", or_dash(worker.sessions)));
    facts.add("calls", or_dash(worker.calls));
    facts.add("clients", or_dash(worker.clients));
    facts.add("restarts", or_dash(worker.restarts));
    facts.add("queued", or_dash(worker.queued_bytes.map(byte_size)));
    for (name, direction, lines) in
        [("lines from it", "in", worker.lines_in), ("lines to it", "out", worker.lines_out)]
    {
        let rate = model.worker_rate(&pool.id, worker.number, direction).map(number);
        let rate = rate.map(|rate| format!(", {rate} per second")).unwrap_or_default();
        facts.add(name, format!("{}{rate}", or_dash(lines)));
    }
    facts.add("last exit", or_dash(worker.last_exit.as_ref()));
    facts.add("recycled", or_dash(worker.last_recycled.as_ref()));
    facts.add("last words", or_dash(worker.last_words.as_ref()));
    facts.lines
}

fn session_facts(session: &Session, theme: Theme) -> Vec<Line<'static>> {
    let mut facts = Facts { theme, lines: Vec::new() };
    facts.add("state", or_dash(session.state.as_ref()));
    facts.add("title", or_dash(session.title.as_ref()));
    facts.add("folder", or_dash(session.folder.as_ref()));
    facts.add("client", session.client.clone().unwrap_or_else(|| "has left".to_owned()));
    facts.add("guests", or_dash(session.guests.as_ref()));
    let asks = session.questions.is_some_and(|count| count > 0);
    let style = if asks { theme.warning() } else { Style::new() };
    facts.add_styled("questions", or_dash(session.questions), style);
    facts.add("pool", or_dash(session.pool.as_ref()));
    facts.add("worker", or_dash(session.worker));
    facts.add("calls", or_dash(session.calls));
    facts.add("opened", session.age_sec.map_or("-".to_owned(), |age| format!("{} ago", duration(age))));
    facts
        .add("last heard", session.idle_sec.map_or("-".to_owned(), |idle| format!("{} ago", duration(idle))));
    facts.lines
}

fn latency_text(latency: Latency) -> String {
    let Latency { p50, p90, p99, max, count } = latency;
    let [p50, p90, p99, max] = [p50, p90, p99, max].map(micros);
    format!("p50 {p50}, p90 {p90}, p99 {p99}, max {max}, {count} answers")
}

struct Facts {
    theme: Theme,
    lines: Vec<Line<'static>>,
}

impl Facts {
    fn add(&mut self, name: &str, value: impl Into<String>) {
        self.add_styled(name, value, Style::new());
    }

    fn add_styled(&mut self, name: &str, value: impl Into<String>, style: Style) {
        let name = Span::styled(format!(" {name:<NAME_WIDTH$} "), self.theme.dim());
        self.lines.push(Line::from(vec![name, Span::styled(value.into(), style)]));
    }
}
