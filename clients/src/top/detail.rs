//! One pool, worker or session, with all that is known of it.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::draw::{block, sessions_table};
use super::model::{Item, Model};
use super::paint::{Paint, known, micros, number};
use super::told::{Latency, Pool, Session, Worker};
use crate::status::{size, span};

/// Wide enough for the longest name of a fact.
const NAME: usize = 14;

pub(super) fn draw(frame: &mut Frame, area: Rect, model: &Model, item: &Item, paint: Paint) {
    let (title, lines, sessions) = match item {
        Item::Pool(id) => {
            let lines = model.told.pool(id).map(|pool| of_pool(pool, paint));
            (format!("pool {id}"), lines, of(model, |session| session.pool.as_ref() == Some(id)))
        }
        Item::Worker(id, number) => {
            let lines = model.worker(id, *number).map(|(pool, worker)| of_worker(model, pool, worker, paint));
            let is_its =
                |session: &Session| session.pool.as_ref() == Some(id) && session.worker == Some(*number);
            (format!("worker {id}/{number}"), lines, of(model, is_its))
        }
        Item::Session(name) => {
            let session = model.sessions().iter().find(|session| session.name == *name);
            (format!("session {name}"), session.map(|session| of_session(session, paint)), Vec::new())
        }
    };
    let lines = lines.unwrap_or_default();
    let needed = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX);
    let below_rows = if sessions.is_empty() { 0 } else { area.height.saturating_sub(needed) };
    let [facts, below] = Layout::vertical([Constraint::Fill(1), Constraint::Length(below_rows)]).areas(area);
    let text = Paragraph::new(lines).wrap(Wrap { trim: false }).block(block(&title, paint));
    frame.render_widget(text, facts);
    if !sessions.is_empty() && below.height >= 3 {
        sessions_table(frame, below, &format!("its sessions ({})", sessions.len()), &sessions, None, paint);
    }
}

fn of(model: &Model, is_its: impl Fn(&Session) -> bool) -> Vec<&Session> {
    model.sessions().iter().filter(|session| is_its(session)).collect()
}

fn of_pool(pool: &Pool, paint: Paint) -> Vec<Line<'static>> {
    let mut facts = Facts { paint, lines: Vec::new() };
    facts.add("mode", &pool.mode);
    facts.add("instances", format!("{}, at most {}", known(pool.instances.is), known(pool.instances.most)));
    if pool.removed {
        facts.add_styled("removed", "it goes when nobody needs it any more", paint.wary());
    }
    let states = ["up", "starting", "resting", "broken"].map(|state| (state, pool.so_many(state)));
    let states =
        states.iter().filter(|(_, count)| *count > 0).map(|(state, count)| format!("{count} {state}"));
    facts.add("workers", states.collect::<Vec<_>>().join(", "));
    let sessions = pool.sum(|worker| worker.sessions);
    let each = pool.max_sessions.map(|most| format!(", at most {most} a worker")).unwrap_or_default();
    facts.add("sessions", format!("{sessions}{each}"));
    facts.add("calls", pool.sum(|worker| worker.calls).to_string());
    facts.add(
        "requests",
        pool.requests_rate.map_or("-".to_owned(), |rate| format!("{} a second", number(rate))),
    );
    facts.add("latency", pool.latency.map_or("-".to_owned(), spelled));
    facts.add("restarts", pool.sum(|worker| worker.restarts).to_string());
    facts.add("queued", size(pool.sum(|worker| worker.queued_bytes)));
    facts.lines
}

fn of_worker(model: &Model, pool: &Pool, worker: &Worker, paint: Paint) -> Vec<Line<'static>> {
    let mut facts = Facts { paint, lines: Vec::new() };
    let up = worker.up_sec.map(|up| format!(" for {}", span(up))).unwrap_or_default();
    facts.add_styled("state", format!("{}{up}", worker.state), paint.state(&worker.state));
    facts.add("pid", known(worker.pid));
    let most = pool.max_sessions.map(|most| format!(" of {most}")).unwrap_or_default();
    facts.add("sessions", format!("{}{most}", known(worker.sessions)));
    facts.add("calls", known(worker.calls));
    facts.add("clients", known(worker.clients));
    facts.add("restarts", known(worker.restarts));
    facts.add("queued", known(worker.queued_bytes.map(size)));
    for (name, way, lines) in
        [("lines from it", "in", worker.lines_in), ("lines to it", "out", worker.lines_out)]
    {
        let rate = model.worker_rate(&pool.id, worker.number, way).map(number);
        let rate = rate.map(|rate| format!(", {rate} a second")).unwrap_or_default();
        facts.add(name, format!("{}{rate}", known(lines)));
    }
    facts.add("last exit", known(worker.last_exit.as_ref()));
    facts.add("last words", known(worker.last_words.as_ref()));
    facts.lines
}

fn of_session(session: &Session, paint: Paint) -> Vec<Line<'static>> {
    let mut facts = Facts { paint, lines: Vec::new() };
    facts.add("state", known(session.state.as_ref()));
    facts.add("client", session.client.clone().unwrap_or_else(|| "has left".to_owned()));
    facts.add("pool", known(session.pool.as_ref()));
    facts.add("worker", known(session.worker));
    facts.add("calls", known(session.calls));
    facts.add("opened", session.age_sec.map_or("-".to_owned(), |age| format!("{} ago", span(age))));
    facts.add("last heard", session.idle_sec.map_or("-".to_owned(), |idle| format!("{} ago", span(idle))));
    facts.lines
}

fn spelled(latency: Latency) -> String {
    let Latency { p50, p90, p99, max, count } = latency;
    let [p50, p90, p99, max] = [p50, p90, p99, max].map(micros);
    format!("p50 {p50}, p90 {p90}, p99 {p99}, max {max}, {count} answers")
}

struct Facts {
    paint: Paint,
    lines: Vec<Line<'static>>,
}

impl Facts {
    fn add(&mut self, name: &str, value: impl Into<String>) {
        self.add_styled(name, value, Style::new());
    }

    fn add_styled(&mut self, name: &str, value: impl Into<String>, style: Style) {
        let name = Span::styled(format!(" {name:<NAME$} "), self.paint.quiet());
        self.lines.push(Line::from(vec![name, Span::styled(value.into(), style)]));
    }
}
