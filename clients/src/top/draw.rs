//! Draws the model in any size.
//!
//! What does not fit is left out: first the columns at the right, then the traffic.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Clear, Paragraph, RenderDirection, Sparkline};

use super::detail;
use super::model::{Item, Mode, Model};
use super::snapshot::{Latency, Pool, Session, Worker};
use super::tables::{self, Column, block, right, sessions_table, table};
use super::theme::{Theme, bar, micros, number, or_dash};
use crate::status::{byte_size, duration, short_size};

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
    match model.selected() {
        Some(item) if model.is_open => detail::draw(frame, middle, model, item, theme),
        _ => tables(frame, middle, model, theme),
    }
    keys(frame, footer_area, model, theme);
    if model.mode == Mode::Help {
        help(frame, area, theme);
    }
}

const HELP: [(&str, &str); 12] = [
    ("↑ ↓ j k", "select a row; PgUp, PgDn, Home, End too"),
    ("Tab", "from pools to sessions and back"),
    ("Enter", "show the selected row in detail; Esc goes back"),
    ("s", "sort this list by the next column"),
    ("/", "filter rows by a text; Esc shows all again"),
    ("R", "restart the selected process, or all of the pool"),
    ("x", "close the selected session"),
    ("?", "this help; any key closes it"),
    ("q", "quit; Ctrl-C too"),
    ("", ""),
    ("LOAD", "open sessions, of as many as fit"),
    ("CPU", "100% is one core, since the last refresh"),
];

fn help(frame: &mut Frame, area: Rect, theme: Theme) {
    let (width, height) = (64.min(area.width), (HELP.len() as u16 + 2).min(area.height));
    let popup = Rect::new((area.width - width) / 2, (area.height - height) / 2, width, height);
    let line = |(key, meaning): &(&'static str, &'static str)| {
        Line::from(vec![Span::styled(format!(" {key:<9}"), theme.title()), Span::raw(*meaning)])
    };
    let text = Paragraph::new(HELP.iter().map(line).collect::<Vec<_>>()).block(block("help", theme));
    frame.render_widget(Clear, popup);
    frame.render_widget(text, popup);
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
    let block = block("traffic per second", theme);
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
        let order = model.session_order.name().map(|name| format!(" by {name}")).unwrap_or_default();
        let title = format!("sessions ({sessions}){order}");
        let of_all: Vec<&Session> = model.sessions().iter().collect();
        sessions_table(frame, sessions_area, &title, &of_all, in_sessions, theme);
    }
}

const POOL_COLUMNS: [Column; 13] = [
    tables::text("POOL", 12, 0).growing(36),
    tables::text("STATE", 10, 0),
    tables::text("LOAD", LOAD_CELLS as u16, 72),
    tables::number("SESS", 4, 0),
    tables::number("CALLS", 5, 0),
    tables::number("MEM", 5, 46),
    tables::number("CPU", 4, 51),
    tables::number("REQ/S", 6, 79),
    tables::number("P50", 7, 104),
    tables::number("P99", 7, 104),
    tables::number("RESTARTS", 8, 60),
    tables::number("QUEUED", 9, 122),
    tables::number("PID", 7, 112),
];

fn pools_table(frame: &mut Frame, area: Rect, model: &Model, at: Option<usize>, theme: Theme) {
    let mut rows = Vec::new();
    for pool in &model.snapshot.pools {
        rows.push((pool_row(pool, theme), None));
        rows.extend(pool.workers.iter().map(|it| (worker_row(pool, it, theme), it.node.clone())));
    }
    let has_nodes = rows.iter().any(|(_, node)| node.is_some());
    let mut columns = POOL_COLUMNS.to_vec();
    if has_nodes {
        columns.insert(1, tables::NODE);
    }
    let with_node = |(mut cells, node): (Vec<Cell<'static>>, Option<String>)| {
        if has_nodes {
            cells.insert(1, Cell::from(node.unwrap_or_default()));
        }
        cells
    };
    let rows = rows.into_iter().map(with_node).collect();
    let order = model.pool_order.name().map(|name| format!(" by {name}")).unwrap_or_default();
    let longest = model.snapshot.pools.iter().map(|pool| pool.id.chars().count() + 2).max().unwrap_or(0);
    let title = format!("pools and workers{order}");
    table(frame, area, &title, (&columns, &|_| longest), rows, at, theme);
}

fn pool_row(pool: &Pool, theme: Theme) -> Vec<Cell<'static>> {
    let up = pool.count_in_state("up");
    let state = if pool.removed { "removed".to_owned() } else { format!("{up} of {}", pool.workers.len()) };
    let state_style = match up {
        // It starts with its first use.
        _ if pool.workers.is_empty() => theme.dim(),
        _ if pool.count_in_state("broken") > 0 => theme.bad(),
        up if up < pool.workers.len() => theme.warning(),
        _ => theme.good(),
    };
    let room = pool.max_sessions.map(|max| max * pool.workers.len() as u64);
    let sessions = pool.sum(|worker| worker.sessions);
    let of_latency = |of: fn(Latency) -> u64| or_dash(pool.latency.map(of).map(micros));
    let memory = pool.sum(|worker| worker.rss_bytes);
    let cpu: f64 = pool.workers.iter().filter_map(|worker| worker.cpu_percent).sum();
    let is_measured = pool.workers.iter().any(|worker| worker.rss_bytes.is_some());
    let texts = [
        if is_measured { short_size(memory) } else { "-".to_owned() },
        if is_measured { format!("{cpu:.0}%") } else { "-".to_owned() },
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
    cells.extend(texts.map(|text| right(text, Style::new())));
    cells
}

fn worker_row(pool: &Pool, worker: &Worker, theme: Theme) -> Vec<Cell<'static>> {
    let texts = [
        or_dash(worker.sessions),
        or_dash(worker.calls),
        or_dash(worker.rss_bytes.map(short_size)),
        or_dash(worker.cpu_percent.map(|percent| format!("{percent:.0}%"))),
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
    for text in texts {
        let style = if text == "0" { theme.dim() } else { Style::new() };
        cells.push(right(text, style));
    }
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

fn keys(frame: &mut Frame, area: Rect, model: &Model, theme: Theme) {
    match (&model.mode, &model.remark) {
        (Mode::Confirm(command), _) => {
            let asked = Span::styled(format!(" {} ", command.question()), theme.warning());
            let line = Line::from(vec![
                asked,
                Span::styled("y", theme.title()),
                Span::raw(" yes, any other key no"),
            ]);
            return frame.render_widget(line, area);
        }
        (Mode::Filter, _) => {
            let typed = Span::raw(format!("{}▏", model.filter));
            let line = Line::from(vec![Span::styled(" only rows with: ", theme.title()), typed]);
            return frame.render_widget(line, area);
        }
        (_, Some(remark)) => {
            return frame.render_widget(Line::styled(format!(" {remark}"), theme.warning()), area);
        }
        _ => {}
    }
    let on_session = matches!(model.selected(), Some(Item::Session(_)));
    let mut keys = vec![("?", "help"), ("q", "quit")];
    keys.push(if model.is_open { ("Esc", "back") } else { ("Enter", "detail") });
    if !model.is_open && !model.sessions().is_empty() {
        keys.push(("Tab", if on_session { "pools" } else { "sessions" }));
    }
    keys.push(if on_session { ("x", "close") } else { ("R", "restart") });
    keys.extend([("s", "sort"), ("/", "filter")]);
    let every = match model.filter.as_str() {
        "" => format!("every {} s ", model.interval),
        filter => format!("only {filter:?} "),
    };
    // What does not fit beside it is left out.
    let mut room = usize::from(area.width).saturating_sub(every.chars().count());
    let mut spans = Vec::new();
    for (key, meaning) in keys {
        let width = key.chars().count() + meaning.chars().count() + 3;
        if width > room {
            break;
        }
        room -= width;
        spans.push(Span::styled(format!(" {key} "), theme.title()));
        spans.push(Span::styled(format!("{meaning} "), theme.dim()));
    }
    frame.render_widget(Line::from(spans), area);
    frame.render_widget(Line::styled(every, theme.dim()).alignment(Alignment::Right), area);
}
