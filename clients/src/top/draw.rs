//! The screen: what it shows of the model, in any size.
//!
//! What does not fit is left out, the least needed first: the columns at the right, then the traffic.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Block, BorderType, Cell, Padding, Paragraph, RenderDirection, Row, Sparkline, Table, TableState,
};

use super::detail;
use super::model::{Item, Model};
use super::paint::{Paint, bar, known, micros, number};
use super::told::{Latency, Pool, Session, Worker};
use crate::status::{size, span};

/// Cells of a load bar.
const LOAD: usize = 10;
const TRAFFIC_ROWS: u16 = 7;
/// Below this height the tables need every line.
const ROWS_FOR_TRAFFIC: u16 = 18;

pub(super) fn screen(frame: &mut Frame, model: &Model, paint: Paint) {
    let area = frame.area();
    let traffic_rows = if area.height >= ROWS_FOR_TRAFFIC { TRAFFIC_ROWS } else { 0 };
    let rows =
        [Constraint::Length(2), Constraint::Length(traffic_rows), Constraint::Fill(1), Constraint::Length(1)];
    let [head, traffic_area, middle, foot] = Layout::vertical(rows).areas(area);
    header(frame, head, model, paint);
    traffic(frame, traffic_area, model, paint);
    match model.selected().filter(|_| model.is_open) {
        Some(item) => detail::draw(frame, middle, model, item, paint),
        None => tables(frame, middle, model, paint),
    }
    keys(frame, foot, model, paint);
}

fn header(frame: &mut Frame, area: Rect, model: &Model, paint: Paint) {
    let told = &model.told;
    let mut first = vec![Span::styled(" stdio-bus ", paint.title()), Span::raw(told.version.clone())];
    if let Some(uptime) = told.uptime_sec {
        first.push(Span::styled(" up ", paint.quiet()));
        first.push(Span::raw(span(uptime)));
    }
    if told.stopping {
        first.push(Span::styled("  stopping", paint.bad()));
    }
    if let Some(why) = &model.gone {
        first.push(Span::styled("  bus gone, trying again ", paint.bad()));
        first.push(Span::styled(format!("({why})"), paint.quiet()));
    } else {
        first.push(Span::styled(format!("  {}", told.listening.join(" ")), paint.quiet()));
    }
    let mut second = Vec::new();
    let mut count = |name: &str, is: Option<u64>, most: Option<u64>| {
        second.push(Span::styled(format!(" {name} "), paint.quiet()));
        second.push(Span::styled(known(is), paint.strong()));
        if let Some(most) = most {
            second.push(Span::styled(format!("/{most}"), paint.quiet()));
        }
        second.push(Span::raw(" "));
    };
    count("clients", told.clients.is, told.clients.most);
    count("sessions", told.sessions, None);
    count("calls", told.calls.is, None);
    let held = told.held_bytes;
    second.push(Span::styled(" held ", paint.quiet()));
    if let (Some(is), Some(most)) = (held.is, held.most.filter(|most| *most > 0)) {
        let part = is as f64 / most as f64;
        let (full, empty) = bar(part, LOAD);
        second.push(Span::styled(full, paint.fullness(part)));
        second.push(Span::styled(empty, paint.frame()));
        second.push(Span::raw(" "));
    }
    second.push(Span::styled(known(held.is.map(size)), paint.strong()));
    if let Some(most) = held.most {
        second.push(Span::styled(format!("/{}", size(most)), paint.quiet()));
    }
    frame.render_widget(Paragraph::new(vec![Line::from(first), Line::from(second)]), area);
}

fn traffic(frame: &mut Frame, area: Rect, model: &Model, paint: Paint) {
    if area.height == 0 {
        return;
    }
    let wide = |columns, from| if area.width >= from { columns } else { 0 };
    let columns = [Constraint::Fill(1), Constraint::Length(wide(22, 56)), Constraint::Length(wide(34, 100))];
    let [flow_area, latency_area, not_carried] = Layout::horizontal(columns).areas(area);
    flow(frame, flow_area, model, paint);
    if latency_area.width > 0 {
        latency(frame, latency_area, model.told.latency, paint);
    }
    if not_carried.width > 0 {
        let block = block("not carried", paint);
        let lines = model.told.not_carried.iter().map(|(how, why, count)| {
            Line::from(vec![
                Span::styled(format!(" {how} "), paint.quiet()),
                Span::raw(format!("{why} ")),
                Span::styled(count.to_string(), paint.wary()),
            ])
        });
        let lines: Vec<Line> = lines.collect();
        let nothing = Line::styled(" nothing", paint.quiet());
        let lines = if lines.is_empty() { vec![nothing] } else { lines };
        frame.render_widget(Paragraph::new(lines).block(block), not_carried);
    }
}

fn flow(frame: &mut Frame, area: Rect, model: &Model, paint: Paint) {
    let block = block("traffic, each second", paint);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let rows = [
        ("requests", "requests"),
        ("lines in", "lines_in"),
        ("lines out", "lines_out"),
        ("bytes in", "bytes_in"),
        ("bytes out", "bytes_out"),
    ];
    for ((label, series), row) in rows.into_iter().zip(inner.rows()) {
        let [name, rate, line] =
            Layout::horizontal([Constraint::Length(11), Constraint::Length(11), Constraint::Fill(1)])
                .areas(row);
        frame.render_widget(Span::styled(format!(" {label}"), paint.quiet()), name);
        // Until there are two looks, the bus's own means are the best there is.
        let now = model.history.rate(series).or_else(|| model.told.rates.get(series).copied());
        let shown = match now {
            Some(now) if series.starts_with("bytes") => size(now as u64),
            now => known(now.map(number)),
        };
        let shown = Line::styled(format!("{shown} "), paint.strong()).alignment(Alignment::Right);
        frame.render_widget(shown, rate);
        // In thousandths, since a sparkline takes whole numbers and a quiet bus has less than one a second.
        let data: Vec<u64> = model.history.rates(series).map(|rate| (rate * 1e3) as u64).collect();
        let sparkline = Sparkline::default().data(data).direction(RenderDirection::RightToLeft);
        frame.render_widget(sparkline.style(paint.flow()), line);
    }
}

fn latency(frame: &mut Frame, area: Rect, latency: Option<Latency>, paint: Paint) {
    let block = block("latency", paint);
    let Some(latency) = latency else {
        let nothing = Line::styled(" no answers yet", paint.quiet());
        return frame.render_widget(Paragraph::new(nothing).block(block), area);
    };
    let each = [("p50", latency.p50), ("p90", latency.p90), ("p99", latency.p99), ("max", latency.max)];
    let mut lines: Vec<Line> =
        each.into_iter().map(|(name, value)| pair(name, micros(value), area.width, paint)).collect();
    lines.push(pair("answers", latency.count.to_string(), area.width, paint));
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// A name at the left, its value at the right.
fn pair(name: &str, value: String, width: u16, paint: Paint) -> Line<'static> {
    let value_width = usize::from(width).saturating_sub(5 + name.chars().count());
    Line::from(vec![
        Span::styled(format!(" {name} "), paint.quiet()),
        Span::styled(format!("{value:>value_width$}"), paint.strong()),
    ])
}

fn tables(frame: &mut Frame, area: Rect, model: &Model, paint: Paint) {
    let items = model.items();
    let sessions = model.sessions().len();
    let workers = items.len() - sessions;
    // Both get what they need, or a share of what there is.
    let needed = |lines: usize| u16::try_from(lines + 3).unwrap_or(u16::MAX);
    let least_for_sessions = if sessions == 0 { 0 } else { needed(sessions).min(area.height / 3) };
    let upper = needed(workers).min(area.height.saturating_sub(least_for_sessions));
    let rows = [Constraint::Length(upper), Constraint::Fill(1)];
    let [pools_area, sessions_area] = Layout::vertical(rows).areas(area);
    let at = model.selected().and_then(|item| items.iter().position(|other| other == item));
    let in_pools = at.filter(|at| *at < workers);
    let in_sessions = at.and_then(|at| at.checked_sub(workers));
    pools_table(frame, pools_area, model, in_pools, paint);
    if sessions_area.height >= 3 && model.sessions.is_some() {
        let title = format!("sessions ({sessions})");
        let of_all: Vec<&Session> = model.sessions().iter().collect();
        sessions_table(frame, sessions_area, &title, &of_all, in_sessions, paint);
    }
}

/// A column: its head, its width, whether it is a number, and from which width of the screen on it is shown.
type Column = (&'static str, u16, bool, u16);

const POOL_COLUMNS: [Column; 11] = [
    ("POOL", 16, false, 0),
    ("STATE", 12, false, 0),
    ("LOAD", LOAD as u16, false, 59),
    ("SESSIONS", 8, true, 0),
    ("CALLS", 5, true, 0),
    ("REQ/S", 6, true, 66),
    ("P50", 7, true, 91),
    ("P99", 7, true, 91),
    ("RESTARTS", 8, true, 75),
    ("QUEUED", 9, true, 110),
    ("PID", 8, true, 100),
];

fn pools_table(frame: &mut Frame, area: Rect, model: &Model, at: Option<usize>, paint: Paint) {
    let mut rows = Vec::new();
    for pool in &model.told.pools {
        rows.push(pool_row(pool, paint));
        rows.extend(pool.workers.iter().map(|worker| worker_row(pool, worker, paint)));
    }
    table(frame, area, "pools and workers", &POOL_COLUMNS, rows, at, paint);
}

fn pool_row(pool: &Pool, paint: Paint) -> Vec<Cell<'static>> {
    let up = pool.so_many("up");
    let state = match pool.removed {
        true => "removed".to_owned(),
        false => format!("{up} of {}", pool.workers.len()),
    };
    let state_style = match up {
        _ if pool.so_many("broken") > 0 => paint.bad(),
        up if up < pool.workers.len() => paint.wary(),
        _ => paint.good(),
    };
    let room = pool.max_sessions.map(|most| most * pool.workers.len() as u64);
    let sessions = pool.sum(|worker| worker.sessions);
    let of_latency = |of: fn(Latency) -> u64| known(pool.latency.map(of).map(micros));
    let words = [
        known(pool.requests_rate.map(number)),
        of_latency(|latency| latency.p50),
        of_latency(|latency| latency.p99),
        pool.sum(|worker| worker.restarts).to_string(),
        size(pool.sum(|worker| worker.queued_bytes)),
        String::new(),
    ];
    let mut cells = vec![
        Cell::from(Span::styled(format!("▸ {}", pool.id), paint.strong())),
        Cell::from(Span::styled(state, state_style)),
        load(sessions, room, paint),
        right(sessions.to_string(), paint.strong()),
        right(pool.sum(|worker| worker.calls).to_string(), paint.strong()),
    ];
    cells.extend(words.map(|word| right(word, Style::new())));
    cells
}

fn worker_row(pool: &Pool, worker: &Worker, paint: Paint) -> Vec<Cell<'static>> {
    let words = [
        known(worker.sessions),
        known(worker.calls),
        String::new(),
        String::new(),
        String::new(),
        known(worker.restarts),
        known(worker.queued_bytes.map(size)),
        known(worker.pid),
    ];
    let mut cells = vec![
        Cell::from(format!("    {}", worker.number)),
        Cell::from(Span::styled(worker.state.clone(), paint.state(&worker.state))),
        load(worker.sessions.unwrap_or_default(), pool.max_sessions, paint),
    ];
    let quiet = |word: String| if word == "0" { paint.quiet() } else { Style::new() };
    cells.extend(words.map(|word| right(word.clone(), quiet(word))));
    cells
}

/// Sessions against the room for them. Where that is not known, there is nothing to draw.
fn load(sessions: u64, room: Option<u64>, paint: Paint) -> Cell<'static> {
    let Some(room) = room.filter(|room| *room > 0) else { return Cell::from("-") };
    let part = sessions as f64 / room as f64;
    let (full, empty) = bar(part, LOAD);
    let spans = vec![Span::styled(full, paint.fullness(part)), Span::styled(empty, paint.frame())];
    Cell::from(Line::from(spans))
}

const SESSION_COLUMNS: [Column; 7] = [
    ("SESSION", 12, false, 0),
    ("WORKER", 16, false, 0),
    ("STATE", 6, false, 46),
    ("CALLS", 5, true, 0),
    ("IDLE", 8, true, 55),
    ("AGE", 8, true, 64),
    ("CLIENT", 24, false, 78),
];

pub(super) fn sessions_table(
    frame: &mut Frame,
    area: Rect,
    title: &str,
    sessions: &[&Session],
    at: Option<usize>,
    paint: Paint,
) {
    let row = |session: &&Session| {
        let worker = match (&session.pool, session.worker) {
            (Some(pool), Some(worker)) => format!("{pool}/{worker}"),
            (pool, _) => known(pool.as_ref()),
        };
        let state = known(session.state.as_ref());
        let style = match state.as_str() {
            "live" => paint.good(),
            "lost" => paint.bad(),
            _ => paint.wary(),
        };
        vec![
            Cell::from(session.name.clone()),
            Cell::from(worker),
            Cell::from(Span::styled(state, style)),
            right(known(session.calls), paint.strong()),
            right(known(session.idle_sec.map(span)), Style::new()),
            right(known(session.age_sec.map(span)), Style::new()),
            Cell::from(known(session.client.as_ref())),
        ]
    };
    table(frame, area, title, &SESSION_COLUMNS, sessions.iter().map(row).collect(), at, paint);
}

fn table(
    frame: &mut Frame,
    area: Rect,
    title: &str,
    columns: &[Column],
    rows: Vec<Vec<Cell<'static>>>,
    at: Option<usize>,
    paint: Paint,
) {
    let is_shown = |(_, _, _, from): &Column| area.width >= *from;
    let shown: Vec<bool> = columns.iter().map(is_shown).collect();
    let shown_columns = columns.iter().filter(|column| is_shown(column));
    let heads = shown_columns.clone().map(|(head, _, number, _)| match number {
        true => right((*head).to_owned(), paint.quiet()),
        false => Cell::from(Span::styled(*head, paint.quiet())),
    });
    let heads = Row::new(heads.collect::<Vec<_>>());
    let widths: Vec<Constraint> = shown_columns.map(|(_, width, ..)| Constraint::Length(*width)).collect();
    let rows = rows.into_iter().map(|cells| {
        Row::new(
            cells
                .into_iter()
                .zip(&shown)
                .filter(|(_, shown)| **shown)
                .map(|(cell, _)| cell)
                .collect::<Vec<_>>(),
        )
    });
    let table = Table::new(rows, widths)
        .header(heads)
        .column_spacing(1)
        .block(block(title, paint).padding(Padding::horizontal(1)));
    let mut state = TableState::new().with_selected(at);
    frame.render_stateful_widget(table.row_highlight_style(paint.chosen()), area, &mut state);
}

fn keys(frame: &mut Frame, area: Rect, model: &Model, paint: Paint) {
    let mut keys = vec![("↑↓", "select"), ("Enter", "detail")];
    if model.is_open {
        keys[1] = ("Esc", "back");
    } else if !model.sessions().is_empty() {
        let to_sessions = !matches!(model.selected(), Some(Item::Session(_)));
        keys.push(("Tab", if to_sessions { "sessions" } else { "pools" }));
    }
    keys.push(("q", "leave"));
    let mut spans = Vec::new();
    for (key, meaning) in keys {
        spans.push(Span::styled(format!(" {key} "), paint.title()));
        spans.push(Span::styled(format!("{meaning} "), paint.quiet()));
    }
    frame.render_widget(Line::from(spans), area);
    let every = Line::styled(format!("every {} s ", model.interval), paint.quiet());
    frame.render_widget(every.alignment(Alignment::Right), area);
}

pub(super) fn block(title: &str, paint: Paint) -> Block<'static> {
    let title = Span::styled(format!(" {title} "), paint.title());
    Block::bordered().border_type(BorderType::Rounded).border_style(paint.frame()).title(title)
}

fn right(text: String, style: Style) -> Cell<'static> {
    Cell::from(Line::styled(text, style).alignment(Alignment::Right))
}
