//! Sessions that end, and why.

use std::collections::VecDeque;

use mooncake_ids::SessionId;

/// Why a session is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Closed,
    ProcessGone,
    /// Away for the retention, or lingering until nothing hung on its views any more.
    Expired,
    Unused,
    /// An heir has its memory: its process has ended.
    Succeeded,
}

impl Ending {
    pub fn reason(self) -> &'static str {
        match self {
            Ending::Closed => "it closed",
            Ending::ProcessGone => "its process is gone",
            Ending::Expired => "it was away for too long",
            Ending::Unused => "it left before it did anything",
            Ending::Succeeded => "its process is gone, and another one has its memory",
        }
    }

    /// Nothing of it can read any more.
    pub fn is_proven(self) -> bool {
        matches!(self, Ending::Closed | Ending::ProcessGone | Ending::Succeeded)
    }
}

/// Sessions that end. Nothing is taken from them any more, and no log knows: with this process they are away.
#[derive(Debug, Default)]
pub(crate) struct Endings {
    /// Each with how far the look for its unfinished puts is.
    pub line: VecDeque<(SessionId, Ending, u32)>,
}

impl Endings {
    pub fn is_empty(&self) -> bool {
        self.line.is_empty()
    }
}
