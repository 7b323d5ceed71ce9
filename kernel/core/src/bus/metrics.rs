//! Rotates the windows of the metrics, once in each second in which the bus runs.

use super::Bus;
use super::status::Report;
use crate::api::{Moment, micros};
use crate::id::WorkerId;

impl Bus {
    #[cold]
    pub(super) fn begin_second(&mut self) {
        let (from, to) = (self.metrics.second, self.now.as_secs());
        let totals = Report::new(self).flow_totals();
        self.metrics.flow.rotate(from, to, totals);
        for id in self.pools.ids() {
            let requests = Report::new(self).requests_of(id);
            let Some(pool) = self.pools.get_mut(id) else { continue };
            pool.metrics.requests.rotate(from, to, [requests]);
            pool.metrics.latency.begin(from, to);
            pool.metrics.first_words.begin(from, to);
        }
        self.metrics.second = to;
    }

    /// An agent begins to say something in answer to a prompt that came then.
    #[cold]
    pub(super) fn count_first_words(&mut self, id: WorkerId, asked: Moment) {
        let pool = self.workers.get(id).map(|worker| worker.pool);
        if let Some(pool) = pool.and_then(|pool| self.pools.get_mut(pool)) {
            pool.metrics.first_words.add(micros(self.now.saturating_sub(asked)));
        }
    }
}
