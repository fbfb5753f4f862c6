//! Clients that leave, for the lines that people read: noted when it begins, taken by whoever writes them.

use crate::core::Core;
use crate::operations::ending::Ending;
use mooncake_ids::SessionId;

/// Departures beyond these are not noted until some are taken.
const NOTED: usize = 4096;

/// A client that leaves for good, with what it had lent to the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Departure {
    /// Its session.
    pub session: SessionId,
    /// "host:port" name of the client.
    pub name: String,
    /// Why.
    pub reason: &'static str,
    /// It closed, and gave its segments back before: nothing is lost.
    pub in_order: bool,
    /// Segments that go with it.
    pub segments: usize,
    /// Their bytes.
    pub lent: u64,
    /// Bytes of these in use, whose objects are gone unless there are other replicas.
    pub used: u64,
}

impl Core {
    /// Those since this was asked last.
    pub fn take_departures(&mut self) -> Vec<Departure> {
        std::mem::take(&mut self.departures)
    }

    /// Notes one, with its segments still there.
    pub(crate) fn note_departure(&mut self, session: SessionId, ending: Ending) {
        let Some(entry) = self.sessions.get(session).filter(|_| self.departures.len() < NOTED) else { return };
        let lent = entry.segments.iter().filter_map(|number| self.segments.get(*number)).map(|segment| segment.view());
        let (lent, used) = lent.fold((0, 0), |(lent, used), view| (lent + view.bytes, used + view.used));
        self.departures.push(Departure {
            session,
            name: entry.spec.name.clone(),
            reason: ending.reason(),
            in_order: matches!(ending, Ending::Closed | Ending::Unused),
            segments: entry.segments.len(),
            lent,
            used,
        });
    }
}
