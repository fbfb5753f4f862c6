//! Kinds of requests whose answers are timed.

use mooncake_wire::message::request::Body;

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timed {
    /// Existence.
    Exists,
    /// Existence, with replicas.
    Describe,
    /// The look-up of a get.
    Lookup,
    /// A look-up that takes views.
    Pin,
    /// Views given back.
    Unpin,
    /// Reserving, answered at once.
    PutStart,
    /// Reserving, by a request that may wait for room or for another put.
    PutStartWaiting,
    /// Committing.
    PutEnd,
    /// Giving up.
    Abort,
    /// Removing by key.
    Remove,
    /// Removing everything.
    RemoveAll,
    /// Removing by pattern.
    RemoveByRegex,
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
}

impl Timed {
    /// All of them, in the order of their numbers.
    pub const ALL: [Timed; 19] = [
        Timed::Exists,
        Timed::Describe,
        Timed::Lookup,
        Timed::Pin,
        Timed::Unpin,
        Timed::PutStart,
        Timed::PutStartWaiting,
        Timed::PutEnd,
        Timed::Abort,
        Timed::Remove,
        Timed::RemoveAll,
        Timed::RemoveByRegex,
        Timed::Mount,
        Timed::Unmount,
        Timed::Segments,
        Timed::BadReplica,
        Timed::CloseSession,
        Timed::Ping,
        Timed::Beat,
    ];

    /// What a request asks for.
    pub fn of(body: &Body) -> Timed {
        match body {
            Body::Exists(_) => Timed::Exists,
            Body::Describe(_) => Timed::Describe,
            Body::Lookup(_) => Timed::Lookup,
            Body::Pin(_) => Timed::Pin,
            Body::Unpin(_) => Timed::Unpin,
            Body::PutStart(ask) if ask.wait => Timed::PutStartWaiting,
            Body::PutStart(_) => Timed::PutStart,
            Body::PutEnd(_) => Timed::PutEnd,
            Body::Abort(_) => Timed::Abort,
            Body::Remove(_) => Timed::Remove,
            Body::RemoveAll(_) => Timed::RemoveAll,
            Body::RemoveByRegex(_) => Timed::RemoveByRegex,
            Body::Mount(_) => Timed::Mount,
            Body::Unmount(_) => Timed::Unmount,
            Body::Segments(_) => Timed::Segments,
            Body::BadReplica(_) => Timed::BadReplica,
            Body::CloseSession(_) => Timed::CloseSession,
            Body::Ping(_) => Timed::Ping,
        }
    }

    /// In a label.
    pub fn name(self) -> &'static str {
        match self {
            Timed::Exists => "exists",
            Timed::Describe => "describe",
            Timed::Lookup => "lookup",
            Timed::Pin => "pin",
            Timed::Unpin => "unpin",
            Timed::PutStart => "put_start",
            Timed::PutStartWaiting => "put_start_waiting",
            Timed::PutEnd => "put_end",
            Timed::Abort => "abort",
            Timed::Remove => "remove",
            Timed::RemoveAll => "remove_all",
            Timed::RemoveByRegex => "remove_by_regex",
            Timed::Mount => "mount",
            Timed::Unmount => "unmount",
            Timed::Segments => "segments",
            Timed::BadReplica => "bad_replica",
            Timed::CloseSession => "close_session",
            Timed::Ping => "ping",
            Timed::Beat => "beat",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_places_in_the_list_and_names_are_there_once() {
        for (number, timed) in Timed::ALL.into_iter().enumerate() {
            assert_eq!(timed as usize, number);
            assert_eq!(Timed::ALL.iter().filter(|other| other.name() == timed.name()).count(), 1);
        }
    }
}
