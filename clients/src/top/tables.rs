//! What several views of `top` are built from: blocks, tables, and the table of sessions.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Cell, Padding, Row, Table, TableState};

use super::snapshot::Session;
use super::theme::{Theme, or_dash};
use crate::sessions::folder;
use crate::status::duration;

/// Where something works, if that is another machine.
pub(super) const NODE: Column = text("NODE", 10, 0);
/// How much is shown of a folder, from its end.
const FOLDER_CHARS: usize = 56;

/// A column of a table. It is shown in areas of at least `min_area` cells of width.
#[derive(Clone, Copy)]
pub(super) struct Column {
    header: &'static str,
    width: u16,
    min_area: u16,
    is_number: bool,
    /// It may get so many cells more, if there is room and its texts need them.
    growth: u16,
}

pub(super) const fn text(header: &'static str, width: u16, min_area: u16) -> Column {
    Column { header, width, min_area, is_number: false, growth: 0 }
}

pub(super) const fn number(header: &'static str, width: u16, min_area: u16) -> Column {
    Column { header, width, min_area, is_number: true, growth: 0 }
}

impl Column {
    pub(super) const fn growing(self, growth: u16) -> Column {
        Column { growth, ..self }
    }
}

const SESSION_COLUMNS: [Column; 11] = [
    text("SESSION", 7, 0),
    text("WORKER", 12, 0).growing(24),
    text("STATE", 5, 44),
    number("CALLS", 5, 0),
    number("ASKS", 4, 50),
    number("IDLE", 7, 58),
    number("AGE", 7, 66),
    text("CLIENT", 14, 80).growing(20),
    text("TITLE", 20, 102).growing(60),
    text("FOLDER", 16, 120).growing(40),
    text("GUESTS", 14, 136).growing(30),
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
        let state = or_dash(session.state.as_ref());
        let style = match state.as_str() {
            "live" => theme.good(),
            "lost" => theme.bad(),
            _ => theme.warning(),
        };
        let mut cells = vec![
            Cell::from(session.name.clone()),
            Cell::from(session.worker_name()),
            Cell::from(Span::styled(state, style)),
            right(or_dash(session.calls), theme.bold()),
            asks(session.questions, theme),
            right(or_dash(session.idle_sec.map(duration)), Style::new()),
            right(or_dash(session.age_sec.map(duration)), Style::new()),
            Cell::from(client(session)),
            Cell::from(or_dash(session.title.as_ref())),
            Cell::from(session.folder.as_ref().map_or("-".to_owned(), |path| folder(path, FOLDER_CHARS))),
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
    let needed = |header: &str| {
        let width = |session: &&Session| match header {
            "WORKER" => session.worker_name().chars().count(),
            "CLIENT" => client(session).chars().count(),
            "TITLE" => session.title.as_ref().map_or(0, |title| title.chars().count()),
            "FOLDER" => session.folder.as_ref().map_or(0, |path| folder(path, FOLDER_CHARS).chars().count()),
            "GUESTS" => session.guests.as_ref().map_or(0, |guests| guests.chars().count()),
            _ => 0,
        };
        sessions.iter().map(width).max().unwrap_or(0)
    };
    let rows = sessions.iter().map(row).collect();
    table(frame, area, title, (&columns, &needed), rows, selected, theme);
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

/// How wide the texts of a growing column are, by its header.
type Needed<'a> = &'a dyn Fn(&str) -> usize;

pub(super) fn table(
    frame: &mut Frame,
    area: Rect,
    title: &str,
    (columns, needed): (&[Column], Needed<'_>),
    rows: Vec<Vec<Cell<'static>>>,
    selected: Option<usize>,
    theme: Theme,
) {
    let is_shown = |column: &Column| area.width >= column.min_area;
    let mut headers = Vec::new();
    let mut widths = Vec::new();
    // Frame and padding take four cells, and each column has one behind it.
    let used: u16 = columns.iter().filter(|column| is_shown(column)).map(|column| column.width + 1).sum();
    let mut spare = area.width.saturating_sub(used + 3);
    for column in columns.iter().filter(|column| is_shown(column)) {
        let header = Line::styled(column.header, theme.dim());
        headers.push(Cell::from(if column.is_number { header.right_aligned() } else { header }));
        let needed = if column.growth > 0 { needed(column.header) } else { 0 };
        let needed = u16::try_from(needed).unwrap_or(u16::MAX).saturating_sub(column.width);
        let more = column.growth.min(spare).min(needed);
        spare -= more;
        widths.push(Constraint::Length(column.width + more));
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
