//! The state of `top`: the last snapshot, what is selected, and what a key does. No I/O, no clock, no drawing.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde_json::Value;

use super::history::History;
use super::snapshot::{self, Pool, Session, Snapshot, Worker};

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
        }
    }

    /// Takes the answers of the bus. `now` is in seconds of any clock.
    pub(super) fn update(&mut self, status: &Value, sessions: Option<&Value>, now: f64) {
        let snapshot = Snapshot::read(status);
        if snapshot.uptime_sec < self.snapshot.uptime_sec {
            self.history.clear();
        }
        self.snapshot = snapshot;
        self.sessions = sessions.map(snapshot::sessions);
        self.lost = None;
        let mut counters = self.snapshot.counters.clone();
        for pool in &self.snapshot.pools {
            for worker in &pool.workers {
                let counts = [("in", worker.lines_in), ("out", worker.lines_out)];
                counters.extend(counts.into_iter().filter_map(|(direction, count)| {
                    Some((series_name(&pool.id, worker.number, direction), count?))
                }));
            }
        }
        self.history.add(now, counters);
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
        match key.code {
            KeyCode::Char('c' | 'd') if control => return KeyOutcome::Quit,
            KeyCode::Char('q') => return KeyOutcome::Quit,
            KeyCode::Up | KeyCode::Char('k') => self.select(self.cursor.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(self.cursor + 1),
            KeyCode::PageUp => self.select(self.cursor.saturating_sub(10)),
            KeyCode::PageDown => self.select(self.cursor + 10),
            KeyCode::Home => self.select(0),
            KeyCode::End => self.select(usize::MAX),
            KeyCode::Tab | KeyCode::BackTab => self.select(self.other_list()),
            KeyCode::Enter => self.is_open = self.selected.is_some(),
            KeyCode::Esc | KeyCode::Backspace => self.is_open = false,
            _ => {}
        }
        KeyOutcome::Stay
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

fn series_name(pool: &str, number: u64, direction: &str) -> String {
    format!("{pool}/{number} {direction}")
}
