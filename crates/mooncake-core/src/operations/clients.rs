//! Clients with what they lend and hold, for pages.

use crate::core::Core;
use crate::ids::Time;
use mooncake_ids::SessionId;

/// A session that is not over. Figures are bytes, unless another unit is said.
#[derive(Debug, Clone)]
pub struct ClientView {
    /// Its number.
    pub session: SessionId,
    /// "host:port", as it named itself.
    pub name: String,
    /// For how long it is away, microseconds.
    pub away_us: Option<u64>,
    /// Its process has ended, and it waits for an heir.
    pub is_bereft: bool,
    /// Segments that it lends.
    pub segments: usize,
    /// What these can hold.
    pub lent: u64,
    /// In use on them, for whatever reason.
    pub used: u64,
    /// On them, under readers' views or hard pins.
    pub pinned: u64,
    /// Under its views, wherever that is.
    pub viewed: u64,
    /// In its unfinished puts.
    pub unfinished: u64,
}

impl Core {
    /// Sessions from a number on, by number. Each looks at the segments that it lends.
    pub fn clients_from(&self, now: Time, first: SessionId) -> impl Iterator<Item = ClientView> {
        self.sessions.from(first).filter(|(_, entry)| !entry.ends).map(move |(session, entry)| {
            let mut view = ClientView {
                session,
                name: entry.spec.name.clone(),
                away_us: entry.away.map(|since| now.0.saturating_sub(since.0)),
                is_bereft: entry.bereft.is_some(),
                segments: entry.segments.len(),
                lent: 0,
                used: 0,
                pinned: 0,
                viewed: self.pins.held_by(session),
                unfinished: entry.unfinished,
            };
            for segment in entry.segments.iter().filter_map(|number| self.segment(*number)) {
                view.lent += segment.capacity;
                view.used += segment.used;
                view.pinned += segment.pinned;
            }
            view
        })
    }
}
