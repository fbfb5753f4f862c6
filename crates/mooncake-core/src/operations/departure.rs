//! Clients that leave, for the lines that people read: noted when a session begins to end, taken by the shell.

use crate::core::Core;
use crate::state::departure::Departure;
use crate::state::endings::Ending;
use mooncake_ids::SessionId;

/// Departures beyond these are not noted until some are taken.
const NOTED: usize = 4096;

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
