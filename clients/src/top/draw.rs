//! Draws the model in any size.
//!
//! What does not fit is left out: first the columns at the right, then the traffic.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Block, BorderType, Cell, Padding, Paragraph, RenderDirection, Row, Sparkline, Table, TableState,
};

use super::detail;
use super::model::{Item, Model};
use super::snapshot::{Latency, Pool, Session, Worker};
use super::theme::{Theme, bar, micros, number, or_dash};
use crate::status::{byte_size, duration};

/// Cells of a load bar.
const LOAD_CELLS: usize = 10;
const TRAFFIC_ROWS: u16 = 7;
/// Below this height the tables need every line.
const MIN_ROWS_FOR_TRAFFIC: u16 = 18;

pub(super) fn screen(frame: &mut Frame, model: &Model, theme: Theme) {
    let area = frame.area();
    let traffic_rows = if area.height >= MIN_ROWS_FOR_TRAFFIC { TRAFFIC_ROWS } else { 0 };
    let rows =
        [Constraint::Length(2), Constraint::Length(traffic_rows), Constraint::Fill(1), Constraint::Length(1)];
    let [header_area, traffic_area, middle, footer_area] = Layout::vertical(rows).areas(area);
    header(frame, header_area, model, theme);
    traffic(frame, traffic_area, model, theme);
    match model.selected().filter(|_| model.is_open) {
        Some(item) => detail::draw(frame, middle, model, item, theme),
        None => tables(frame, middle, model, theme),
    }
    keys(frame, footer_area, model, theme);
}

fn header(frame: &mut Frame, area: Rect, model: &Model, theme: Theme) {
    let snapshot = &model.snapshot;
    let mut first = vec![Span::styled(" stdio-bus ", theme.title()), Span::raw(snapshot.version.clone())];
    if let Some(uptime) = snapshot.uptime_sec {
        first.push(Span::styled(" up ", theme.dim()));
        first.push(Span::raw(duration(uptime)));
    }
    if snapshot.stopping {
        first.push(Span::styled("  stopping", theme.bad()));
    }
    if let Some(why) = &model.lost {
        first.push(Span::styled("  bus gone, trying again ", theme.bad()));
        first.push(Span::styled(format!("({why})"), theme.dim()));
    } else {
        first.push(Span::styled(format!("  {}", snapshot.listening.join(" ")), theme.dim()));
    }
    let mut second = Vec::new();
    let mut count = |name: &str, current: Option<u64>, max: Option<u64>| {
        second.push(Span::styled(format!(" {name} "), theme.dim()));
        second.push(Span::styled(or_dash(current), theme.bold()));
        if let Some(max) = max {
            second.push(Span::styled(format!("/{max}"), theme.dim()));
        }
        second.push(Span::raw(" "));
    };
    count("clients", snapshot.clients.current, snapshot.clients.max);
    count("sessions", snapshot.sessions, None);
    count("calls", snapshot.calls.current, None);
    let held = snapshot.held_bytes;
    second.push(Span::styled(" held ", theme.dim()));
    if let (Some(current), Some(max)) = (held.current, held.max.filter(|max| *max > 0)) {
        let fraction = current as f64 / max as f64;
        let (full, empty) = bar(fraction, LOAD_CELLS);
        second.push(Span::styled(full, theme.fullness(fraction)));
        second.push(Span::styled(empty, theme.frame()));
        second.push(Span::raw(" "));
    }
    second.push(Span::styled(or_dash(held.current.map(byte_size)), theme.bold()));
    if let Some(max) = held.max {
        second.push(Span::styled(format!("/{}", byte_size(max)), theme.dim()));
    }
    frame.render_widget(Paragraph::new(vec![Line::from(first), Line::from(second)]), area);
}

fn traffic(frame: &mut Frame, area: Rect, model: &Model, theme: Theme) {
    if area.height == 0 {
        return;
    }
    let wide = |columns, from| if area.width >= from { columns } else { 0 };
    let columns = [Constraint::Fill(1), Constraint::Length(wide(22, 56)), Constraint::Length(wide(34, 100))];
    let [flow_area, latency_area, not_carried] = Layout::horizontal(columns).areas(area);
    traffic_rates(frame, flow_area, model, theme);
    if latency_area.width > 0 {
        latency(frame, latency_area, model.snapshot.latency, theme);
    }
    if not_carried.width > 0 {
        let block = block("not carried", theme);
        let lines = model.snapshot.not_carried.iter().map(|(how, why, count)| {
            Line::from(vec![
                Span::styled(format!(" {how} "), theme.dim()),
                Span::raw(format!("{why} ")),
                Span::styled(count.to_string(), theme.warning()),
            ])
        });
        let lines: Vec<Line> = lines.collect();
        let nothing = Line::styled(" nothing", theme.dim());
        let lines = if lines.is_empty() { vec![nothing] } else { lines };
        frame.render_widget(Paragraph::new(lines).block(block), not_carried);
    }
}

fn traffic_rates(frame: &mut Frame, area: Rect, model: &Model, theme: Theme) {
    let block = block("traffic, each second", theme);
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
        frame.render_widget(Span::styled(format!(" {label}"), theme.dim()), name);
        // A rate of our own needs two samples; until then the bus's average is shown.
        let now = model.history.rate(series).or_else(|| model.snapshot.rates.get(series).copied());
        let shown = match now {
            Some(now) if series.starts_with("bytes") => byte_size(now as u64),
            now => or_dash(now.map(number)),
        };
        let shown = Line::styled(format!("{shown} "), theme.bold()).alignment(Alignment::Right);
        frame.render_widget(shown, rate);
        // A sparkline takes whole numbers, so rates are scaled to keep those below one per second visible.
        let data: Vec<u64> = model.history.rates(series).map(|rate| (rate * 1e3) as u64).collect();
        let sparkline = Sparkline::default().data(data).direction(RenderDirection::RightToLeft);
        frame.render_widget(sparkline.style(theme.sparkline()), line);
    }
}

fn latency(frame: &mut Frame, area: Rect, latency: Option<Latency>, theme: Theme) {
    let block = block("latency", theme);
    let Some(latency) = latency else {
        let nothing = Line::styled(" no answers yet", theme.dim());
        return frame.render_widget(Paragraph::new(nothing).block(block), area);
    };
    let each = [("p50", latency.p50), ("p90", latency.p90), ("p99", latency.p99), ("max", latency.max)];
    let mut lines: Vec<Line> = each
        .into_iter()
        .map(|(name, value)| name_and_value(name, micros(value), area.width, theme))
        .collect();
    lines.push(name_and_value("answers", latency.count.to_string(), area.width, theme));
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// The name is aligned to the left, the value to the right.
fn name_and_value(name: &str, value: String, width: u16, theme: Theme) -> Line<'static> {
    let value_width = usize::from(width).saturating_sub(5 + name.chars().count());
    Line::from(vec![
        Span::styled(format!(" {name} "), theme.dim()),
        Span::styled(format!("{value:>value_width$}"), theme.bold()),
    ])
}

fn tables(frame: &mut Frame, area: Rect, model: &Model, theme: Theme) {
    let items = model.items();
    let sessions = model.sessions().len();
    let workers = items.len() - sessions;
    // Both tables get the rows they need, or a share of what there is.
    let needed = |lines: usize| u16::try_from(lines + 3).unwrap_or(u16::MAX);
    let least_for_sessions = if sessions == 0 { 0 } else { needed(sessions).min(area.height / 3) };
    let upper = needed(workers).min(area.height.saturating_sub(least_for_sessions));
    let rows = [Constraint::Length(upper), Constraint::Fill(1)];
    let [pools_area, sessions_area] = Layout::vertical(rows).areas(area);
    let at = model.selected().and_then(|item| items.iter().position(|other| other == item));
    let in_pools = at.filter(|at| *at < workers);
    let in_sessions = at.and_then(|at| at.checked_sub(workers));
    pools_table(frame, pools_area, model, in_pools, theme);
    if sessions_area.height >= 3 && model.sessions.is_some() {
        let title = format!("sessions ({sessions})");
        let of_all: Vec<&Session> = model.sessions().iter().collect();
        sessions_table(frame, sessions_area, &title, &of_all, in_sessions, theme);
    }
}

/// Header, width, whether it is a number, and the least width of the area at which it is shown.
type Column = (&'static str, u16, bool, u16);

const POOL_COLUMNS: [Column; 11] = [
    ("POOL", 16, false, 0),
    ("STATE", 12, false, 0),
    ("LOAD", LOAD_CELLS as u16, false, 59),
    ("SESSIONS", 8, true, 0),
    ("CALLS", 5, true, 0),
    ("REQ/S", 6, true, 66),
    ("P50", 7, true, 91),
    ("P99", 7, true, 91),
    ("RESTARTS", 8, true, 75),
    ("QUEUED", 9, true, 110),
    ("PID", 8, true, 100),
];

fn pools_table(frame: &mut Frame, area: Rect, model: &Model, at: Option<usize>, theme: Theme) {
    let mut rows = Vec::new();
    for pool in &model.snapshot.pools {
        rows.push(pool_row(pool, theme));
        rows.extend(pool.workers.iter().map(|worker| worker_row(pool, worker, theme)));
    }
    table(frame, area, "pools and workers", &POOL_COLUMNS, rows, at, theme);
}

fn pool_row(pool: &Pool, theme: Theme) -> Vec<Cell<'static>> {
    let up = pool.count_in_state("up");
    let state = match pool.removed {
        true => "removed".to_owned(),
        false => format!("{up} of {}", pool.workers.len()),
    };
    let state_style = match up {
        _ if pool.count_in_state("broken") > 0 => theme.bad(),
        up if up < pool.workers.len() => theme.warning(),
        _ => theme.good(),
    };
    let room = pool.max_sessions.map(|max| max * pool.workers.len() as u64);
    let sessions = pool.sum(|worker| worker.sessions);
    let of_latency = |of: fn(Latency) -> u64| or_dash(pool.latency.map(of).map(micros));
    let words = [
        or_dash(pool.requests_rate.map(number)),
        of_latency(|latency| latency.p50),
        of_latency(|latency| latency.p99),
        pool.sum(|worker| worker.restarts).to_string(),
        byte_size(pool.sum(|worker| worker.queued_bytes)),
        String::new(),
    ];
    let mut cells = vec![
        Cell::from(Span::styled(format!("▸ {}", pool.id), theme.bold())),
        Cell::from(Span::styled(state, state_style)),
        load(sessions, room, theme),
        right(sessions.to_string(), theme.bold()),
        right(pool.sum(|worker| worker.calls).to_string(), theme.bold()),
    ];
    cells.extend(words.map(|word| right(word, Style::new())));
    cells
}

fn worker_row(pool: &Pool, worker: &Worker, theme: Theme) -> Vec<Cell<'static>> {
    let words = [
        or_dash(worker.sessions),
        or_dash(worker.calls),
        String::new(),
        String::new(),
        String::new(),
        or_dash(worker.restarts),
        or_dash(worker.queued_bytes.map(byte_size)),
        or_dash(worker.pid),
    ];
    let mut cells = vec![
        Cell::from(format!("    {}", worker.number)),
        Cell::from(Span::styled(worker.state.clone(), theme.state(&worker.state))),
        load(worker.sessions.unwrap_or_default(), pool.max_sessions, theme),
    ];
    let dim = |word: String| if word == "0" { theme.dim() } else { Style::new() };
    cells.extend(words.map(|word| right(word.clone(), dim(word))));
    cells
}

/// The share of used sessions, if their maximum is known.
fn load(sessions: u64, room: Option<u64>, theme: Theme) -> Cell<'static> {
    let Some(room) = room.filter(|room| *room > 0) else { return Cell::from("-") };
    let fraction = sessions as f64 / room as f64;
    let (full, empty) = bar(fraction, LOAD_CELLS);
    let spans = vec![Span::styled(full, theme.fullness(fraction)), Span::styled(empty, theme.frame())];
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
    theme: Theme,
) {
    let row = |session: &&Session| {
        let worker = match (&session.pool, session.worker) {
            (Some(pool), Some(worker)) => format!("{pool}/{worker}"),
            (pool, _) => or_dash(pool.as_ref()),
        };
        let state = or_dash(session.state.as_ref());
        let style = match state.as_str() {
            "live" => theme.good(),
            "lost" => theme.bad(),
            _ => theme.warning(),
        };
        vec![
            Cell::from(session.name.clone()),
            Cell::from(worker),
            Cell::from(Span::styled(state, style)),
            right(or_dash(session.calls), theme.bold()),
            right(or_dash(session.idle_sec.map(duration)), Style::new()),
            right(or_dash(session.age_sec.map(duration)), Style::new()),
            Cell::from(or_dash(session.client.as_ref())),
        ]
    };
    table(frame, area, title, &SESSION_COLUMNS, sessions.iter().map(row).collect(), at, theme);
}

fn table(
    frame: &mut Frame,
    area: Rect,
    title: &str,
    columns: &[Column],
    rows: Vec<Vec<Cell<'static>>>,
    at: Option<usize>,
    theme: Theme,
) {
    let is_shown = |(_, _, _, from): &Column| area.width >= *from;
    let shown: Vec<bool> = columns.iter().map(is_shown).collect();
    let shown_columns = columns.iter().filter(|column| is_shown(column));
    let headers = shown_columns.clone().map(|(header, _, number, _)| match number {
        true => right((*header).to_owned(), theme.dim()),
        false => Cell::from(Span::styled(*header, theme.dim())),
    });
    let headers = Row::new(headers.collect::<Vec<_>>());
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
        .header(headers)
        .column_spacing(1)
        .block(block(title, theme).padding(Padding::horizontal(1)));
    let mut state = TableState::new().with_selected(at);
    frame.render_stateful_widget(table.row_highlight_style(theme.selected_row()), area, &mut state);
}

fn keys(frame: &mut Frame, area: Rect, model: &Model, theme: Theme) {
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
        spans.push(Span::styled(format!(" {key} "), theme.title()));
        spans.push(Span::styled(format!("{meaning} "), theme.dim()));
    }
    frame.render_widget(Line::from(spans), area);
    let every = Line::styled(format!("every {} s ", model.interval), theme.dim());
    frame.render_widget(every.alignment(Alignment::Right), area);
}

pub(super) fn block(title: &str, theme: Theme) -> Block<'static> {
    let title = Span::styled(format!(" {title} "), theme.title());
    Block::bordered().border_type(BorderType::Rounded).border_style(theme.frame()).title(title)
}

fn right(text: String, style: Style) -> Cell<'static> {
    Cell::from(Line::styled(text, style).alignment(Alignment::Right))
}
