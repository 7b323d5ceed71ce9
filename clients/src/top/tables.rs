//! What several views of `top` are built from: blocks, tables, and the table of sessions.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Cell, Padding, Row, Table, TableState};

use super::snapshot::Session;
use super::theme::{Theme, or_dash};
use crate::status::duration;

/// Where something works, if that is another machine.
pub(super) const NODE: Column = text("NODE", 10, 0);

/// A column of a table. It is shown in areas of at least `min_area` cells of width.
#[derive(Clone, Copy)]
pub(super) struct Column {
    header: &'static str,
    width: u16,
    min_area: u16,
    is_number: bool,
}

pub(super) const fn text(header: &'static str, width: u16, min_area: u16) -> Column {
    Column { header, width, min_area, is_number: false }
}

pub(super) const fn number(header: &'static str, width: u16, min_area: u16) -> Column {
    Column { header, width, min_area, is_number: true }
}

const SESSION_COLUMNS: [Column; 9] = [
    text("SESSION", 9, 0),
    text("WORKER", 16, 0),
    text("STATE", 6, 43),
    number("CALLS", 5, 0),
    number("ASKS", 4, 48),
    number("IDLE", 8, 57),
    number("AGE", 8, 66),
    text("CLIENT", 24, 78),
    text("GUESTS", 24, 116),
];

pub(super) fn sessions_table(
    frame: &mut Frame,
    area: Rect,
    title: &str,
    sessions: &[&Session],
    selected: Option<usize>,
    theme: Theme,
) {
    let has_nodes = sessions.iter().any(|session| session.node.is_some());
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
        let mut cells = vec![
            Cell::from(session.name.clone()),
            Cell::from(worker),
            Cell::from(Span::styled(state, style)),
            right(or_dash(session.calls), theme.bold()),
            asks(session.questions, theme),
            right(or_dash(session.idle_sec.map(duration)), Style::new()),
            right(or_dash(session.age_sec.map(duration)), Style::new()),
            Cell::from(client(session)),
            Cell::from(or_dash(session.guests.as_ref())),
        ];
        if has_nodes {
            cells.insert(2, Cell::from(or_dash(session.node.as_ref())));
        }
        cells
    };
    let mut columns = SESSION_COLUMNS.to_vec();
    if has_nodes {
        columns.insert(2, NODE);
    }
    table(frame, area, title, &columns, sessions.iter().map(row).collect(), selected, theme);
}

/// Questions that are open hold the agent up.
fn asks(questions: Option<u64>, theme: Theme) -> Cell<'static> {
    let style = if questions.is_some_and(|count| count > 0) { theme.warning() } else { Style::new() };
    right(or_dash(questions), style)
}

/// The owner, and how many others are in the session.
fn client(session: &Session) -> String {
    let owner = or_dash(session.client.as_ref());
    match session.guest_count {
        0 => owner,
        count => format!("{owner} +{count}"),
    }
}

pub(super) fn table(
    frame: &mut Frame,
    area: Rect,
    title: &str,
    columns: &[Column],
    rows: Vec<Vec<Cell<'static>>>,
    selected: Option<usize>,
    theme: Theme,
) {
    let is_shown = |column: &Column| area.width >= column.min_area;
    let mut headers = Vec::new();
    let mut widths = Vec::new();
    for column in columns.iter().filter(|column| is_shown(column)) {
        let header = Line::styled(column.header, theme.dim());
        headers.push(Cell::from(if column.is_number { header.right_aligned() } else { header }));
        widths.push(Constraint::Length(column.width));
    }
    let rows = rows.into_iter().map(|cells| {
        let cells = cells.into_iter().zip(columns).filter(|(_, column)| is_shown(column));
        Row::new(cells.map(|(cell, _)| cell).collect::<Vec<_>>())
    });
    let table = Table::new(rows, widths)
        .header(Row::new(headers))
        .column_spacing(1)
        .block(block(title, theme).padding(Padding::horizontal(1)));
    let mut state = TableState::new().with_selected(selected);
    frame.render_stateful_widget(table.row_highlight_style(theme.selected_row()), area, &mut state);
}

pub(super) fn block(title: &str, theme: Theme) -> Block<'static> {
    let title = Span::styled(format!(" {title} "), theme.title());
    Block::bordered().border_type(BorderType::Rounded).border_style(theme.frame()).title(title)
}

pub(super) fn right(text: String, style: Style) -> Cell<'static> {
    Cell::from(Line::styled(text, style).right_aligned())
}
