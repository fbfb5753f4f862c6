//! Clients with what they lend and hold, for pages.

use crate::core::Core;
use crate::ids::Time;
use crate::request::SessionSpec;
use mooncake_ids::SessionId;

/// A session that is not over. Figures are bytes, unless another unit is said.
#[derive(Debug, Clone, Copy)]
pub struct ClientView<'a> {
    /// Its number.
    pub session: SessionId,
    /// What it said of itself.
    pub spec: &'a SessionSpec,
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
    /// Views that it has.
    pub views: u64,
    /// Under these views, wherever that is.
    pub viewed: u64,
    /// In its unfinished puts.
    pub unfinished: u64,
}

impl Core {
    /// Sessions from a number on, by number.
    pub fn clients_from(&self, now: Time, first: SessionId) -> impl Iterator<Item = ClientView<'_>> {
        self.sessions.from(first).filter(|(_, entry)| !entry.ends).map(move |(session, entry)| {
            let mut view = ClientView {
                session,
                spec: &entry.spec,
                away_us: entry.away.map(|since| now.0.saturating_sub(since.0)),
                is_bereft: entry.bereft.is_some(),
                segments: entry.segments.len(),
                lent: 0,
                used: 0,
                pinned: 0,
                views: entry.pins.values().map(|views| u64::from(*views)).sum(),
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
