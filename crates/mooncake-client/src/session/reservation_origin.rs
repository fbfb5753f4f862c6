//! Where reservations come from: the session, and what its segment numbers mean.

use std::sync::Arc;

use crate::machine;
use crate::machine::numbering::Numbering;
use crate::session::Session;

/// Where a reservation comes from. (The core's `Origin` is that of a mutation.)
#[derive(Debug, Clone)]
pub(crate) struct ReservationOrigin {
    pub numbering: Numbering,
    pub session: Arc<Session>,
}

impl machine::put::ReservationOrigin for ReservationOrigin {
    fn is_of_session(&self, other: &Self) -> bool {
        self.session.is(&other.session)
    }
}
