//! What is left to be told to sessions.

use std::collections::VecDeque;

use crate::ids::{Extent, SegmentNo};
use mooncake_ids::{Rid, SegmentUuid, SessionId};

/// A segment that is Gone, and how far what views hold of it has been gone through. None is added to that any more.
#[derive(Debug)]
pub(crate) struct Naming {
    pub uuid: SegmentUuid,
    pub number: SegmentNo,
    pub pinned: Vec<Extent>,
    /// So many are left at most.
    pub left: usize,
}

/// What a session that is back is told again.
#[derive(Debug)]
pub(crate) struct Again {
    pub session: SessionId,
    /// Of all segments that have gone, the next one and the end.
    pub gone: std::ops::Range<u64>,
    pub naming: Option<Naming>,
    /// The next one of the fences that it has yet to answer.
    pub fences: Option<Rid>,
}

/// What is left to be told.
#[derive(Debug, Default)]
pub(crate) struct Tellings {
    /// To every session, each with how many segments went before.
    pub to_all: VecDeque<(u64, Naming)>,
    pub again: VecDeque<Again>,
}

impl Tellings {
    pub fn is_empty(&self) -> bool {
        self.to_all.is_empty() && self.again.is_empty()
    }

    /// Whether a session is yet to hear what went while it was away.
    pub fn has_gone_for(&self, session: SessionId) -> bool {
        self.again.iter().any(|again| again.session == session && !(again.gone.is_empty() && again.naming.is_none()))
    }
}
