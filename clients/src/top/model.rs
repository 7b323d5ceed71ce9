//! What the screen is about: what the bus told, what is selected, and what a key means. No I/O, no clock, no drawing.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde_json::Value;

use super::history::History;
use super::told::{self, Pool, Session, Told, Worker};

/// A line that can be selected, by its name: it stays selected while lines come and go around it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Item {
    Pool(String),
    Worker(String, u64),
    Session(String),
}

/// What to do after a key.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Step {
    Stay,
    Leave,
}

pub(super) struct Model {
    pub(super) told: Told,
    /// None: this bus cannot tell.
    pub(super) sessions: Option<Vec<Session>>,
    pub(super) history: History,
    /// Why there is no answer, since the last one there was.
    pub(super) gone: Option<String>,
    /// How often is looked, in seconds.
    pub(super) interval: f64,
    /// Where the selected line was, for when it goes away.
    at: usize,
    selected: Option<Item>,
    /// The selected line is shown in detail.
    pub(super) is_open: bool,
}

impl Model {
    pub(super) fn new(interval: f64) -> Model {
        Model {
            told: Told::default(),
            sessions: None,
            history: History::default(),
            gone: None,
            interval,
            at: 0,
            selected: None,
            is_open: false,
        }
    }

    /// The bus has answered. `now`: in seconds of any clock.
    pub(super) fn hear(&mut self, status: &Value, sessions: Option<&Value>, now: f64) {
        let told = Told::read(status);
        if told.uptime_sec < self.told.uptime_sec {
            self.history.forget();
        }
        self.told = told;
        self.sessions = sessions.map(told::sessions);
        self.gone = None;
        let mut counters = self.told.counters.clone();
        for pool in &self.told.pools {
            for worker in &pool.workers {
                let each = [("in", worker.lines_in), ("out", worker.lines_out)];
                counters.extend(
                    each.into_iter()
                        .filter_map(|(way, count)| Some((series_of(&pool.id, worker.number, way), count?))),
                );
            }
        }
        self.history.note(now, counters);
        self.find_selected();
    }

    /// The bus does not answer; what it said last stays on the screen.
    pub(super) fn lose(&mut self, why: String) {
        self.gone = Some(why);
    }

    pub(super) fn press(&mut self, key: KeyEvent) -> Step {
        if key.kind == KeyEventKind::Release {
            return Step::Stay;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'd') if control => return Step::Leave,
            KeyCode::Char('q') => return Step::Leave,
            KeyCode::Up | KeyCode::Char('k') => self.select(self.at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(self.at + 1),
            KeyCode::PageUp => self.select(self.at.saturating_sub(10)),
            KeyCode::PageDown => self.select(self.at + 10),
            KeyCode::Home => self.select(0),
            KeyCode::End => self.select(usize::MAX),
            KeyCode::Tab | KeyCode::BackTab => self.select(self.other_list()),
            KeyCode::Enter => self.is_open = self.selected.is_some(),
            KeyCode::Esc | KeyCode::Backspace => self.is_open = false,
            _ => {}
        }
        Step::Stay
    }

    pub(super) fn selected(&self) -> Option<&Item> {
        self.selected.as_ref()
    }

    /// Pools with their workers, then sessions, as they stand on the screen.
    pub(super) fn items(&self) -> Vec<Item> {
        let mut items = Vec::new();
        for pool in &self.told.pools {
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
        let pool = self.told.pool(pool)?;
        Some((pool, pool.worker(number)?))
    }

    pub(super) fn worker_rate(&self, pool: &str, number: u64, way: &str) -> Option<f64> {
        self.history.rate(&series_of(pool, number, way))
    }

    fn select(&mut self, at: usize) {
        let items = self.items();
        self.at = at.min(items.len().saturating_sub(1));
        self.selected = items.get(self.at).cloned();
    }

    fn other_list(&self) -> usize {
        let first_session = self.items().iter().position(|item| matches!(item, Item::Session(_)));
        match self.selected {
            Some(Item::Session(_)) => 0,
            _ => first_session.unwrap_or(self.at),
        }
    }

    /// What was selected stays so; where it is gone, its neighbour is, and what was open is closed.
    fn find_selected(&mut self) {
        let place =
            self.selected.as_ref().and_then(|item| self.items().iter().position(|other| other == item));
        if place.is_none() {
            self.is_open = false;
        }
        self.select(place.unwrap_or(self.at));
    }
}

fn series_of(pool: &str, number: u64, way: &str) -> String {
    format!("{pool}/{number} {way}")
}
