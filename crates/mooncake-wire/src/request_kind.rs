//! Kinds of requests, as those who time them tell them apart.

use crate::message::request::Body;

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// Existence.
    Exists,
    /// Existence, with replicas.
    Describe,
    /// The look-up of a get.
    Lookup,
    /// A look-up that pins what it finds.
    Pin,
    /// Views given back.
    Unpin,
    /// Reserving, answered at once.
    PutStart,
    /// Reserving, by a request that may wait for room or for another put.
    PutStartWaiting,
    /// Committing.
    PutEnd,
    /// Aborting.
    Abort,
    /// Removing by key.
    Remove,
    /// Removing everything.
    RemoveAll,
    /// Removing by pattern.
    RemoveByRegex,
    /// Dropping replicas by key.
    ClearReplicas,
    /// Mounting.
    Mount,
    /// Unmounting.
    Unmount,
    /// How to reach segments.
    Segments,
    /// A report of a bad replica.
    BadReplica,
    /// Ending a session.
    CloseSession,
    /// Whether the master is there.
    Ping,
    /// A beat of an anchor.
    Beat,
    /// Mounting a tier.
    TierMount,
    /// Leaving a tier.
    TierLeave,
    /// Judging the records of a tier's file.
    TierReclaim,
    /// Memory that is to outlive its process.
    Keep,
}

impl RequestKind {
    /// All of them, in the order of their numbers.
    pub const ALL: [RequestKind; 24] = [
        RequestKind::Exists,
        RequestKind::Describe,
        RequestKind::Lookup,
        RequestKind::Pin,
        RequestKind::Unpin,
        RequestKind::PutStart,
        RequestKind::PutStartWaiting,
        RequestKind::PutEnd,
        RequestKind::Abort,
        RequestKind::Remove,
        RequestKind::RemoveAll,
        RequestKind::RemoveByRegex,
        RequestKind::ClearReplicas,
        RequestKind::Mount,
        RequestKind::Unmount,
        RequestKind::Segments,
        RequestKind::BadReplica,
        RequestKind::CloseSession,
        RequestKind::Ping,
        RequestKind::Beat,
        RequestKind::TierMount,
        RequestKind::TierLeave,
        RequestKind::TierReclaim,
        RequestKind::Keep,
    ];

    /// What a request asks for.
    pub fn of(body: &Body) -> RequestKind {
        match body {
            Body::Exists(_) => RequestKind::Exists,
            Body::Describe(_) => RequestKind::Describe,
            Body::Lookup(_) => RequestKind::Lookup,
            Body::Pin(_) => RequestKind::Pin,
            Body::Unpin(_) => RequestKind::Unpin,
            Body::PutStart(ask) if ask.wait => RequestKind::PutStartWaiting,
            Body::PutStart(_) => RequestKind::PutStart,
            Body::PutEnd(_) => RequestKind::PutEnd,
            Body::Abort(_) => RequestKind::Abort,
            Body::Remove(_) => RequestKind::Remove,
            Body::RemoveAll(_) => RequestKind::RemoveAll,
            Body::RemoveByRegex(_) => RequestKind::RemoveByRegex,
            Body::ClearReplicas(_) => RequestKind::ClearReplicas,
            Body::Mount(_) => RequestKind::Mount,
            Body::Unmount(_) => RequestKind::Unmount,
            Body::Segments(_) => RequestKind::Segments,
            Body::BadReplica(_) => RequestKind::BadReplica,
            Body::CloseSession(_) => RequestKind::CloseSession,
            Body::Ping(_) => RequestKind::Ping,
            Body::TierMount(_) => RequestKind::TierMount,
            Body::TierLeave(_) => RequestKind::TierLeave,
            Body::TierReclaim(_) => RequestKind::TierReclaim,
            Body::Keep(_) => RequestKind::Keep,
        }
    }

    /// Not a beat, which an anchor sends by itself.
    pub fn is_call(self) -> bool {
        self != RequestKind::Beat
    }

    /// In a label.
    pub fn name(self) -> &'static str {
        match self {
            RequestKind::Exists => "exists",
            RequestKind::Describe => "describe",
            RequestKind::Lookup => "lookup",
            RequestKind::Pin => "pin",
            RequestKind::Unpin => "unpin",
            RequestKind::PutStart => "put_start",
            RequestKind::PutStartWaiting => "put_start_waiting",
            RequestKind::PutEnd => "put_end",
            RequestKind::Abort => "abort",
            RequestKind::Remove => "remove",
            RequestKind::RemoveAll => "remove_all",
            RequestKind::RemoveByRegex => "remove_by_regex",
            RequestKind::ClearReplicas => "clear_replicas",
            RequestKind::Mount => "mount",
            RequestKind::Unmount => "unmount",
            RequestKind::Segments => "segments",
            RequestKind::BadReplica => "bad_replica",
            RequestKind::CloseSession => "close_session",
            RequestKind::Ping => "ping",
            RequestKind::Beat => "beat",
            RequestKind::TierMount => "tier_mount",
            RequestKind::TierLeave => "tier_leave",
            RequestKind::TierReclaim => "tier_reclaim",
            RequestKind::Keep => "keep",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_places_in_the_list_and_names_are_there_once() {
        for (number, kind) in RequestKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, number);
            assert_eq!(RequestKind::ALL.iter().filter(|other| other.name() == kind.name()).count(), 1);
        }
    }
}
