//! The state of `top`: the last snapshot, what is selected, and what a key does. No I/O, no clock, no drawing.
//!
//! What the bus said last is kept as it was, so that another filter or order takes effect at once.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde_json::Value;

use super::history::History;
use super::snapshot::{self, Pool, Session, Snapshot, Worker};
use super::sort::{PoolOrder, SessionOrder};

/// The longest text to filter by.
const FILTER_CHARS: usize = 40;

/// A row that can be selected. It is identified by name, so it stays selected while rows come and go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Item {
    Pool(String),
    Worker(String, u64),
    Session(String),
}

#[derive(PartialEq, Eq, Debug)]
pub(super) enum KeyOutcome {
    Stay,
    Quit,
    /// The user wants this done.
    Do(Command),
}

/// What the bus is asked to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Command {
    /// Ends a session.
    Close(String),
    /// Replaces the processes of a pool, or one of them.
    Restart(String, Option<u64>),
}

impl Command {
    pub(super) fn question(&self) -> String {
        match self {
            Command::Close(session) => format!("close session {session}?"),
            Command::Restart(pool, None) => format!("restart all processes of {pool}?"),
            Command::Restart(pool, Some(worker)) => format!("restart {pool}/{worker}?"),
        }
    }
}

/// What keys are for at the moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    Look,
    /// They are the text to filter by.
    Filter,
    /// `y` carries the command out, anything else does not.
    Confirm(Command),
    Help,
}

pub(super) struct Model {
    pub(super) snapshot: Snapshot,
    /// `None`: this bus has no `_bus/sessions`.
    pub(super) sessions: Option<Vec<Session>>,
    pub(super) history: History,
    /// Why the bus does not answer. `None`: it does.
    pub(super) lost: Option<String>,
    /// The polling interval in seconds.
    pub(super) interval: f64,
    /// The index of the selected row, for when that row disappears.
    cursor: usize,
    selected: Option<Item>,
    /// The selected row is shown in detail.
    pub(super) is_open: bool,
    pub(super) mode: Mode,
    /// Only rows with this text are shown.
    pub(super) filter: String,
    pub(super) pool_order: PoolOrder,
    pub(super) session_order: SessionOrder,
    /// What came of the last command.
    pub(super) remark: Option<String>,
    /// What the bus said last.
    said: (Value, Option<Value>),
}

impl Model {
    pub(super) fn new(interval: f64) -> Model {
        Model {
            snapshot: Snapshot::default(),
            sessions: None,
            history: History::default(),
            lost: None,
            interval,
            cursor: 0,
            selected: None,
            is_open: false,
            mode: Mode::Look,
            filter: String::new(),
            pool_order: PoolOrder::default(),
            session_order: SessionOrder::default(),
            remark: None,
            said: (Value::Null, None),
        }
    }

    /// Takes the answers of the bus. `now` is in seconds of any clock.
    pub(super) fn update(&mut self, status: &Value, sessions: Option<&Value>, now: f64) {
        let all = Snapshot::read(status);
        if all.uptime_sec < self.snapshot.uptime_sec {
            self.history.clear();
        }
        self.lost = None;
        let mut counters = all.counters.clone();
        for pool in &all.pools {
            for worker in &pool.workers {
                let counts = [("in", worker.lines_in), ("out", worker.lines_out)];
                counters.extend(counts.into_iter().filter_map(|(direction, count)| {
                    Some((series_name(&pool.id, worker.number, direction), count?))
                }));
            }
        }
        self.history.add(now, counters);
        self.said = (status.clone(), sessions.cloned());
        self.choose_rows();
    }

    /// Filters and sorts what the bus said last.
    fn choose_rows(&mut self) {
        let (status, sessions) = &self.said;
        self.snapshot = Snapshot::read(status);
        self.sessions = sessions.as_ref().map(snapshot::sessions);
        let wanted = self.filter.to_lowercase();
        self.snapshot.pools.retain(|pool| pool.id.to_lowercase().contains(&wanted));
        if let Some(sessions) = &mut self.sessions {
            sessions.retain(|session| matches(session, &wanted));
            self.session_order.sort(sessions);
        }
        self.pool_order.sort(&mut self.snapshot.pools);
        self.find_selected();
    }

    /// The bus does not answer; its last snapshot stays on the screen.
    pub(super) fn on_lost(&mut self, why: String) {
        self.lost = Some(why);
    }

    pub(super) fn press(&mut self, key: KeyEvent) -> KeyOutcome {
        if key.kind == KeyEventKind::Release {
            return KeyOutcome::Stay;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && matches!(key.code, KeyCode::Char('c' | 'd')) {
            return KeyOutcome::Quit;
        }
        self.remark = None;
        match std::mem::replace(&mut self.mode, Mode::Look) {
            Mode::Look => {}
            Mode::Help => return KeyOutcome::Stay,
            Mode::Confirm(command) => {
                let agrees = matches!(key.code, KeyCode::Char('y' | 'Y') | KeyCode::Enter);
                return if agrees { KeyOutcome::Do(command) } else { KeyOutcome::Stay };
            }
            Mode::Filter => {
                self.edit_filter(key.code);
                return KeyOutcome::Stay;
            }
        }
        match key.code {
            KeyCode::Char('q') => return KeyOutcome::Quit,
            KeyCode::Char('?' | 'h') => self.mode = Mode::Help,
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char('s') => self.sort_otherwise(),
            KeyCode::Char('R') => self.confirm(self.restart_of_selected()),
            KeyCode::Char('x') | KeyCode::Delete => self.confirm(self.close_of_selected()),
            KeyCode::Up | KeyCode::Char('k') => self.select(self.cursor.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(self.cursor + 1),
            KeyCode::PageUp => self.select(self.cursor.saturating_sub(10)),
            KeyCode::PageDown => self.select(self.cursor + 10),
            KeyCode::Home => self.select(0),
            KeyCode::End => self.select(usize::MAX),
            KeyCode::Tab | KeyCode::BackTab => self.select(self.other_list()),
            KeyCode::Enter => self.is_open = self.selected.is_some(),
            KeyCode::Esc if !self.is_open && !self.filter.is_empty() => {
                self.filter.clear();
                self.choose_rows();
            }
            KeyCode::Esc | KeyCode::Backspace => self.is_open = false,
            _ => {}
        }
        KeyOutcome::Stay
    }

    fn edit_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => return,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Backspace => _ = self.filter.pop(),
            KeyCode::Char(letter) if self.filter.chars().count() < FILTER_CHARS => self.filter.push(letter),
            _ => {}
        }
        if key != KeyCode::Esc {
            self.mode = Mode::Filter;
        }
        self.choose_rows();
    }

    /// The list with the selected row gets the next order.
    fn sort_otherwise(&mut self) {
        if matches!(self.selected, Some(Item::Session(_))) {
            self.session_order = self.session_order.next();
        } else {
            self.pool_order = self.pool_order.next();
        }
        self.choose_rows();
    }

    fn confirm(&mut self, command: Option<Command>) {
        if let Some(command) = command {
            self.mode = Mode::Confirm(command);
        }
    }

    fn restart_of_selected(&self) -> Option<Command> {
        match self.selected.clone()? {
            Item::Pool(pool) => Some(Command::Restart(pool, None)),
            Item::Worker(pool, worker) => Some(Command::Restart(pool, Some(worker))),
            Item::Session(_) => None,
        }
    }

    fn close_of_selected(&self) -> Option<Command> {
        match self.selected.clone()? {
            Item::Session(session) => Some(Command::Close(session)),
            Item::Pool(_) | Item::Worker(..) => None,
        }
    }

    pub(super) fn selected(&self) -> Option<&Item> {
        self.selected.as_ref()
    }

    /// Pools with their workers, then sessions, in screen order.
    pub(super) fn items(&self) -> Vec<Item> {
        let mut items = Vec::new();
        for pool in &self.snapshot.pools {
            items.push(Item::Pool(pool.id.clone()));
            items.extend(pool.workers.iter().map(|worker| Item::Worker(pool.id.clone(), worker.number)));
        }
        items.extend(self.sessions().iter().map(|session| Item::Session(session.name.clone())));
        items
    }

    pub(super) fn sessions(&self) -> &[Session] {
        self.sessions.as_deref().unwrap_or_default()
    }

    pub(super) fn worker(&self, pool: &str, number: u64) -> Option<(&Pool, &Worker)> {
        let pool = self.snapshot.pool(pool)?;
        Some((pool, pool.worker(number)?))
    }

    pub(super) fn worker_rate(&self, pool: &str, number: u64, direction: &str) -> Option<f64> {
        self.history.rate(&series_name(pool, number, direction))
    }

    fn select(&mut self, cursor: usize) {
        let items = self.items();
        self.cursor = cursor.min(items.len().saturating_sub(1));
        self.selected = items.get(self.cursor).cloned();
    }

    fn other_list(&self) -> usize {
        let first_session = self.items().iter().position(|item| matches!(item, Item::Session(_)));
        match self.selected {
            Some(Item::Session(_)) => 0,
            _ => first_session.unwrap_or(self.cursor),
        }
    }

    /// Keeps the selection. If the row is gone, selects its neighbour and closes the detail view.
    fn find_selected(&mut self) {
        let position =
            self.selected.as_ref().and_then(|item| self.items().iter().position(|other| other == item));
        if position.is_none() {
            self.is_open = false;
        }
        self.select(position.unwrap_or(self.cursor));
    }
}

/// Whether a session has this text, in lower case, in one of its columns.
fn matches(session: &Session, wanted: &str) -> bool {
    let (name, worker) = (Some(&session.name), session.worker_name());
    let texts =
        [name, session.client.as_ref(), session.folder.as_ref(), session.title.as_ref(), Some(&worker)];
    texts
        .into_iter()
        .chain([session.guests.as_ref()])
        .flatten()
        .any(|text| text.to_lowercase().contains(wanted))
}

fn series_name(pool: &str, number: u64, direction: &str) -> String {
    format!("{pool}/{number} {direction}")
}
