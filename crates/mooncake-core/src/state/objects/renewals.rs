//! Groups of which an operation has found an object: the others are touched or protected with it, those of very large
//! groups, or of many, a moment later.

use std::collections::VecDeque;

use super::Objects;
use crate::ids::Time;
use crate::state::group::GroupNo;
use crate::state::object::TierPlace;

/// So many members are renewed with what one operation finds; the other groups that it finds one of wait for their
/// turn.
const AT_ONCE: usize = 1_024;

/// The others of a group are to be renewed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Renewal {
    pub group: GroupNo,
    /// The one that was found, which is renewed already.
    pub member: u32,
    /// They are protected for so long; without it they are touched.
    pub protect_ms: Option<u64>,
}

/// Those that are yet to be.
#[derive(Debug)]
pub(super) struct Renewals {
    waiting: VecDeque<Renewal>,
    /// Members that the operation under way may still renew.
    left: usize,
}

impl Default for Renewals {
    /// No operation is under way: a replay takes as long as it takes.
    fn default() -> Renewals {
        Renewals { waiting: VecDeque::new(), left: usize::MAX }
    }
}

impl Objects {
    /// An operation begins that may find objects of very many groups.
    pub fn begin_renewals(&mut self) {
        self.renewals.left = AT_ONCE;
    }

    /// Renews the others of a group at once if there is time for it.
    pub(super) fn renew(&mut self, now: Time, renewal: Renewal, is_young: impl Fn(&TierPlace) -> bool) {
        match self.renewals.left {
            0 => self.renewals.waiting.push_back(renewal),
            left => self.renewals.left = left.saturating_sub(self.renew_others(now, renewal, is_young)),
        }
    }

    /// Goes on with one that waits: how many members it had. `None` when none does.
    pub fn renew_next(&mut self, now: Time, is_young: impl Fn(&TierPlace) -> bool) -> Option<usize> {
        let renewal = self.renewals.waiting.pop_front()?;
        // It may have left its group, which may be no more.
        match self.groups.of(renewal.member) == Some(renewal.group) {
            true => Some(self.renew_others(now, renewal, is_young)),
            false => Some(0),
        }
    }

    fn renew_others(&mut self, now: Time, renewal: Renewal, is_young: impl Fn(&TierPlace) -> bool) -> usize {
        let others = self.groups.renewed_with(renewal.group, renewal.member);
        for other in &others {
            match renewal.protect_ms {
                Some(protect_ms) => self.protect_one(now, *other, protect_ms),
                None => self.touch_one(now, *other, &is_young),
            }
        }
        others.len()
    }
}
