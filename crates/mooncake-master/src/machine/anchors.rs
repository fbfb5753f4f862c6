//! Which connection is a session's anchor, and what follows when it ends.
//!
//! A session has one anchor at a time. A connection that another one has replaced may have frames unread, and it may
//! end late: neither says anything about the session any more. All of this happens under the core's lock, in which
//! anchors are set and end, so that core and anchors never tell two stories.

use std::collections::BTreeMap;

use mooncake_core::{Core, Effects, Push, Time};
use mooncake_ids::SessionId;
use mooncake_mutant::mutant;

/// Fences that an owner is asked for in one go, where there are more than its anchor takes at once.
pub const FENCES_SLICE: usize = 512;

/// The anchors of all sessions. `Q` names what is sent down one: a driver's queue. Two are equal if they are the same
/// one.
#[derive(Debug)]
pub struct Anchors<Q> {
    by_session: BTreeMap<SessionId, Held<Q>>,
}

#[derive(Debug)]
struct Held<Q> {
    queue: Q,
    /// Another process has proven that this anchor's is gone.
    reported_gone: bool,
}

/// Where the anchors are kept. A driver that looks them up without the core's lock keeps them behind one of their own,
/// and takes that for one step at a time, so that its deliveries never wait for the core.
pub trait AnchorTable {
    /// What is sent down an anchor.
    type Queue: PartialEq + Clone;

    /// Takes one step with the anchors.
    fn with_anchors<R>(&mut self, step: impl FnOnce(&mut Anchors<Self::Queue>) -> R) -> R;
}

impl<Q: PartialEq + Clone> AnchorTable for Anchors<Q> {
    type Queue = Q;

    fn with_anchors<R>(&mut self, step: impl FnOnce(&mut Anchors<Q>) -> R) -> R {
        step(self)
    }
}

/// A connection that was a session's anchor when it began.
#[derive(Debug)]
pub struct Anchor<'a, Q> {
    /// Whose.
    pub session: SessionId,
    /// What is sent down it.
    pub queue: &'a Q,
}

impl<Q> Clone for Anchor<'_, Q> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Q> Copy for Anchor<'_, Q> {}

/// Another connection is the session's anchor by now, or none is. The one that is told so is to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replaced;

impl<Q> Default for Anchors<Q> {
    fn default() -> Self {
        Anchors { by_session: BTreeMap::new() }
    }
}

impl<Q: PartialEq + Clone> Anchors<Q> {
    /// Makes a connection the anchor of a session. Gives the one that it replaces, which is to be closed.
    pub fn set(&mut self, session: SessionId, queue: Q) -> Option<Q> {
        let before = self.by_session.insert(session, Held { queue, reported_gone: false });
        before.map(|before| before.queue)
    }

    /// The session's anchor, if it has one now.
    pub fn get(&self, session: SessionId) -> Option<&Q> {
        self.by_session.get(&session).map(|held| &held.queue)
    }

    /// All of them, by their sessions.
    pub fn iter(&self) -> impl Iterator<Item = &Q> {
        self.by_session.values().map(|held| &held.queue)
    }

    /// Number of anchors.
    pub fn count(&self) -> usize {
        self.by_session.len()
    }

    fn is_current(&self, anchor: Anchor<'_, Q>) -> bool {
        self.get(anchor.session) == Some(anchor.queue)
    }

    /// Keeps, for the moment the session's anchor ends, that its process is gone. False: it has none.
    fn note_gone(&mut self, session: SessionId) -> bool {
        let held = self.by_session.get_mut(&session);
        held.map(|held| held.reported_gone = true).is_some()
    }

    /// Forgets an anchor that ended, unless another one has taken its place. Gives whether its process was reported
    /// gone.
    fn forget(&mut self, anchor: Anchor<'_, Q>) -> Option<bool> {
        let is_current = self.is_current(anchor);
        is_current.then(|| self.by_session.remove(&anchor.session)).flatten().map(|held| held.reported_gone)
    }
}

/// Whether a connection is the session's anchor still. Frames that lay unread on one that was replaced are not obeyed:
/// their sender has said since then what it holds, and what it says there is older.
pub fn check<L: AnchorTable>(anchors: &mut L, anchor: Anchor<'_, L::Queue>) -> Result<(), Replaced> {
    let is_current = anchors.with_anchors(|anchors| anchors.is_current(anchor)) || mutant!(ReplacedAnchorsAreObeyed);
    is_current.then_some(()).ok_or(Replaced)
}

/// A connection has ended that was a session's anchor: the session is away, or over if another process has proven its
/// process gone. False, and nothing is done, when another connection has taken its place.
pub fn ended<L: AnchorTable>(
    core: &mut Core,
    anchors: &mut L,
    now: Time,
    anchor: Anchor<'_, L::Queue>,
    effects: &mut Effects,
) -> bool {
    let Some(reported_gone) = anchors.with_anchors(|anchors| anchors.forget(anchor)) else { return false };
    core.anchor_lost(now, anchor.session, effects);
    if reported_gone {
        core.process_gone(now, anchor.session, effects);
    }
    true
}

/// Another process has proven that a session's process is gone. That counts once the session's own anchor is down;
/// until then the anchor keeps it, so that no process can talk a living client's segments away. Gives whether the
/// session is over.
pub(super) fn reported_gone<L: AnchorTable>(
    core: &mut Core,
    anchors: &mut L,
    now: Time,
    session: SessionId,
    effects: &mut Effects,
) -> bool {
    let kept = anchors.with_anchors(|anchors| anchors.note_gone(session)) && !mutant!(LivingClientsAreReportedGone);
    if !kept {
        core.process_gone(now, session, effects);
    }
    !kept
}

/// Whether a message is the last one to its session: the anchor closes behind it.
pub fn is_last(push: &Push) -> bool {
    matches!(push, Push::SessionOver(_))
}

#[cfg(test)]
mod tests {
    use mooncake_wire::message::{PeerGone, anchor_up};

    use super::super::testbed::{MEMORY, Testbed};

    #[test]
    fn an_older_anchor_that_ends_late_hides_nothing() {
        let mut testbed = Testbed::new();
        let first = testbed.owner();
        let second = testbed.resume(first);
        assert_eq!(testbed.closed, [first.queue], "the one that was replaced is closed");
        assert!(!testbed.hangs_up(first));
        assert_eq!((testbed.stats().sessions_away, testbed.anchors.get(second.session)), (0, Some(&second.queue)));
        assert!(testbed.hangs_up(second));
        assert_eq!((testbed.stats().sessions_away, testbed.anchors.count()), (1, 0));
        assert!(!testbed.hangs_up(second), "it ends once");
    }

    #[test]
    fn what_an_anchor_kept_of_the_end_of_its_process_goes_with_it() {
        let mut testbed = Testbed::new();
        let (first, peer) = (testbed.owner(), testbed.open());
        testbed
            .says(peer, anchor_up::Body::PeerGone(PeerGone { uuid: MEMORY.to_vec().into(), process: None }))
            .unwrap();
        // It has come back since, so that the report was wrong.
        let second = testbed.resume(first);
        testbed.hangs_up(first);
        testbed.hangs_up(second);
        assert!(testbed.knows(second), "it is only away");
    }
}
