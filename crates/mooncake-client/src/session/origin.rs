//! Where reservations come from.

use std::sync::Arc;

use crate::machine;
use crate::machine::numbering::Numbering;
use crate::session::Session;

/// Where a reservation comes from.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    pub numbering: Numbering,
    pub session: Arc<Session>,
}

impl machine::put::Origin for Origin {
    fn is_of_session(&self, other: &Self) -> bool {
        self.session.is(&other.session)
    }
}
