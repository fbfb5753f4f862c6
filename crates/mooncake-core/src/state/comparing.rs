//! What changes of the views of a session while they are compared with a list.

use std::collections::BTreeSet;

use crate::state::session::Session;
use mooncake_ids::Rid;

/// Placements whose views change while a list is compared, of one session: with more of them, which takes as many
/// requests of it meanwhile, the list is compared anew.
const CHANGED_MAX: usize = 65_536;

/// A session's views are being compared.
#[derive(Debug)]
pub(crate) struct Comparing {
    pub number: u64,
    /// Whose number has changed since.
    pub changed: BTreeSet<Rid>,
}

impl Session {
    /// The number of its views of a placement changes.
    pub fn views_change(&mut self, rid: Rid) {
        if let Some(comparing) = &mut self.comparing {
            comparing.changed.insert(rid);
            if comparing.changed.len() > CHANGED_MAX {
                self.comparing = None;
            }
        }
    }

    /// Views of a placement that have ended, and are yet to be taken out of the books.
    pub fn ended(&self, rid: Rid) -> u32 {
        self.ended.binary_search_by_key(&rid, |(other, _)| *other).map_or(0, |at| self.ended[at].1)
    }
}
