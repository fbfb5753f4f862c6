//! What remains of a mapped segment when it is Gone, and when the rest of its memory is given back.
//!
//! An owner gives its memory back itself. When it has died its peers do, all but the extents that are pinned and those
//! of their own views.

use std::collections::BTreeMap;

use mooncake_mutant::mutant;

/// One mapping's part in that. Extents are (offset, length).
#[derive(Debug, Default)]
pub struct Remains {
    /// Of this process's views, with their numbers.
    views: BTreeMap<(u64, u64), usize>,
    owner_ended: bool,
    is_gone: bool,
    /// The pinned extents that a master named which knows all of them.
    pinned: Option<Vec<(u64, u64)>>,
    /// A give-back was called for, and has not begun since.
    called_for: bool,
}

impl Remains {
    /// A view is about to be made: it is on the list before the look at its bytes.
    pub fn view_made(&mut self, offset: u64, len: u64) {
        *self.views.entry((offset, len)).or_insert(0) += 1;
    }

    /// A view has ended. True: a give-back is called for, as memory can be given back now that it could not before.
    pub fn view_ended(&mut self, offset: u64, len: u64) -> bool {
        let Some(count) = self.views.get_mut(&(offset, len)) else { return false };
        *count -= 1;
        if *count > 0 {
            return false;
        }
        self.views.remove(&(offset, len));
        self.calls_for_give_back()
    }

    /// The owner's process has ended, which alone proves that it gives nothing back any more. True the first time.
    pub fn owner_ended(&mut self) -> bool {
        !std::mem::replace(&mut self.owner_ended, true)
    }

    /// Whether a give-back is called for: memory can be given back, and none was called for since the last one began.
    pub fn calls_for_give_back(&mut self) -> bool {
        self.is_due() && !std::mem::replace(&mut self.called_for, true)
    }

    /// The look at what is to be given back begins: what changes from here on is for another one. False: nothing is.
    pub fn begin(&mut self) -> bool {
        self.called_for = false;
        self.is_due()
    }

    /// The segment is Gone, and this of it is pinned. `None`: the master that says so may not know all of it.
    pub fn forget(&mut self, pinned: Option<&[(u64, u64)]>) {
        self.is_gone = true;
        let Some(pinned) = pinned else { return };
        // Told twice, by a master that was restarted meanwhile: what it has forgotten may still be viewed.
        let keep = self.pinned.get_or_insert_default();
        let more = pinned.iter().filter(|extent| !keep.contains(extent)).copied().collect::<Vec<_>>();
        keep.extend(more);
    }

    /// Whether this process gives the memory back, all but [`Self::keep`].
    fn is_due(&self) -> bool {
        (self.owner_ended || mutant!(PeerGivesBackOfTheLiving)) && self.is_gone
    }

    /// What stays of a segment of so many bytes. Asked when no view can be made any more that is not on the list.
    ///
    /// When no other process has it mapped, what others had pinned is of no use any more. They are asked for by
    /// their locks and not by the master, which may be away. And an epoch that this process's master has not shown is
    /// another's, whose pins are not among the named ones.
    pub fn keep(&self, bytes: u64, is_alone: bool, is_asked_by_another: bool) -> Vec<(u64, u64)> {
        let mut keep = match (is_alone, is_asked_by_another) {
            (true, _) => Vec::new(),
            (false, true) if !mutant!(PinsOfAnotherEpochAreForgotten) => vec![(0, bytes)],
            (false, _) if mutant!(PeerForgetsPins) => Vec::new(),
            (false, _) => self.pinned.clone().unwrap_or_else(|| vec![(0, bytes)]),
        };
        if !mutant!(PeerForgetsOwnViews) {
            keep.extend(self.views.keys());
        }
        keep
    }
}

#[cfg(test)]
mod tests {
    use mooncake_mutant::{Mutant, is_noticed_by};

    use super::*;

    const BYTES: u64 = 1 << 20;

    #[test]
    fn memory_is_given_back_when_it_is_gone_and_its_owners_process_has_ended() {
        let (mut first, mut last) = (Remains::default(), Remains::default());
        first.forget(Some(&[]));
        assert!(!first.begin(), "its owner gives it back");
        assert!(first.owner_ended() && first.begin());
        assert!(last.owner_ended() && !last.begin(), "its objects may be looked up again");
        assert!(!last.owner_ended());
        last.forget(Some(&[]));
        assert!(last.begin());
    }

    #[test]
    fn a_give_back_is_called_for_once_until_it_begins() {
        let mut remains = Remains::default();
        (0..3).for_each(|nth| remains.view_made(nth * 4096, 100));
        remains.forget(Some(&[]));
        assert!(!remains.calls_for_give_back());
        remains.owner_ended();
        assert!(remains.calls_for_give_back() && !remains.calls_for_give_back());
        assert!(!remains.view_ended(0, 100), "the look that is to come sees it");
        assert!(remains.begin());
        assert!(remains.view_ended(4096, 100), "it has begun to look");
        assert!(!remains.view_ended(8192, 100));
    }

    #[test]
    fn own_views_stay_and_what_others_have_pinned_while_there_are_others() {
        let mut remains = Remains::default();
        remains.forget(Some(&[(0, 4096)]));
        remains.view_made(8192, 100);
        assert_eq!(remains.keep(BYTES, true, false), [(8192, 100)]);
        assert_eq!(remains.keep(BYTES, false, false), [(0, 4096), (8192, 100)]);
        assert_eq!(remains.keep(BYTES, false, true), [(0, BYTES), (8192, 100)]);
        assert_eq!(remains.keep(BYTES, true, true), [(8192, 100)]);
    }

    #[test]
    fn what_a_master_once_named_as_pinned_is_kept_when_it_is_told_again_without_it() {
        let mut remains = Remains::default();
        for pinned in [&[(0, 4096)][..], &[], &[(8192, 1)], &[(8192, 1)]] {
            remains.forget(Some(pinned));
        }
        assert_eq!(remains.keep(BYTES, false, false), [(0, 4096), (8192, 1)]);
    }

    #[test]
    fn all_is_kept_until_a_master_that_knows_all_pins_has_named_them() {
        let mut remains = Remains::default();
        remains.owner_ended();
        remains.forget(None);
        assert!(remains.begin(), "the owner is dead, and this process may be alone");
        assert_eq!(remains.keep(BYTES, false, false), [(0, BYTES)]);
        assert_eq!(remains.keep(BYTES, true, false), []);
        remains.forget(Some(&[(0, 4096)]));
        remains.forget(None);
        assert_eq!(remains.keep(BYTES, false, false), [(0, 4096)]);
    }

    #[test]
    fn the_last_view_of_an_extent_lets_go_of_it() {
        let mut remains = Remains::default();
        (0..3).for_each(|_| remains.view_made(0, 100));
        assert!(!remains.view_ended(0, 100), "the segment is not Gone");
        remains.forget(Some(&[]));
        remains.owner_ended();
        assert!(!remains.view_ended(0, 100), "there is one more");
        assert_eq!(remains.keep(BYTES, true, false), [(0, 100)]);
        assert!(remains.view_ended(0, 100) && remains.keep(BYTES, true, false).is_empty());
        assert!(!remains.view_ended(0, 100));
    }

    #[test]
    fn its_mutants_are_noticed() {
        assert!(is_noticed_by(
            Mutant::PinsOfAnotherEpochAreForgotten,
            own_views_stay_and_what_others_have_pinned_while_there_are_others
        ));
    }
}
