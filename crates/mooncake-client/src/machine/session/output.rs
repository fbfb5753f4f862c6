//! What the anchor has its driver do.

use std::time::Duration;

use mooncake_ids::{Rid, SegmentUuid};
use mooncake_segment::{Epoch, Fence};
use mooncake_wire::message::{
    AnchorUp, LogPosition, TierAllOrdered, TierOrder, TierPromote, TierRecheck, TierRetire, TierShared, hello,
};

/// A replica in this store's memory that a reader could not verify.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recheck {
    /// Segment.
    pub uuid: SegmentUuid,
    /// Placement.
    pub rid: Rid,
    /// First byte of its extent.
    pub offset: u64,
    /// Bytes of the object.
    pub length: u64,
    /// CRC-32C that they should have.
    pub crc: u32,
}

/// What the driver is to do.
#[derive(Debug)]
pub enum Output {
    /// Connect to the master of this number in the list and say this hello; then [`super::Anchor::answered`], if a
    /// reply is there `by` that time, or [`super::Anchor::failed`]. Another connection that is there by now is not used
    /// any more.
    Connect {
        /// Index in the list of masters.
        master: usize,
        /// What the hello asks for.
        role: hello::Role,
        /// And the highest position that it shows.
        highest: LogPosition,
        /// Since the time origin.
        by: Duration,
    },
    /// Call [`super::Anchor::reconnect`] with what this store's owner holds.
    Reconnect,
    /// Send this over the connection. When that fails it is broken ([`super::Anchor::lost`]).
    Send(AnchorUp),
    /// Send this if that is possible at once: the end of the connection and of the process say it too.
    Goodbye(AnchorUp),
    /// End the connection. `silent`: the master has said nothing for too long.
    HangUp {
        /// Why.
        silent: bool,
    },
    /// Nothing is to be done before that time, unless a message comes, or a thread wants something.
    WaitUntil(Duration),
    /// The master asks the owner of the memory for a proof.
    Fence(Fence),
    /// The master asks the owner to look at a replica.
    Recheck(Recheck),
    /// The master orders an object to be written to this store's tier.
    TierOrder(TierOrder),
    /// The master asks for a copy in memory of what this store's tier has.
    TierPromote(TierPromote),
    /// The master needs files of this store's tier no more.
    TierRetire(TierRetire),
    /// The master asks the owner to look at a record of its tier.
    TierRecheck(TierRecheck),
    /// The master has ordered all that this store's tier is to write before the store closes.
    TierAllOrdered(TierAllOrdered),
    /// The master says what is to be known of a file system that this store's tier shares with others.
    TierShared(TierShared),
    /// The master asks the owner to take an epoch: [`super::Anchor::epoch_asked`] with what it says.
    TakeEpoch(Epoch),
    /// This store's own master is in this epoch: its links obey it, and the owners that asked hear so.
    Obey(Epoch),
    /// A segment is Gone, this store's or another one's: what of it is pinned, as offsets and lengths.
    SegmentGone {
        /// Segment.
        uuid: SegmentUuid,
        /// Its number in placements.
        number: u32,
        /// What views hold of it.
        pinned: Vec<(u64, u64)>,
    },
    /// The session goes on over the connection that was made last, perhaps with another process of the master. It is to
    /// be published, and then that the master lives ([`crate::machine::reachability::Reachability::pong`]); the owner
    /// reports its figures again, and replaces what is Gone.
    Resumed {
        /// Segments of this store that the master does not know.
        gone: Vec<SegmentUuid>,
        /// How many views the master has named that it does not know; `None`: it knows all.
        unknown_views: Option<usize>,
    },
    /// Another session is to begin: the numbers of segments that are known mean nothing any more.
    StartOver,
    /// It has begun over the connection that was made last. It is to be published, and then that the master lives; the
    /// store needs new links, and its owner new memory in the place of all that it has.
    Began,
    /// The master has ended this session; it is resumed, or another one begins.
    Ended {
        /// What the master says of it.
        reason: String,
    },
    /// There is still no connection.
    Unreachable {
        /// Why.
        reason: String,
    },
    /// Nothing is left to do for this store.
    Stop,
}

/// What has to be done now, in this order.
pub type Outputs = Vec<Output>;

/// What an owner says when it is asked to take an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taking {
    /// It does, and tells the master of each segment when it has.
    Begun,
    /// It obeys another epoch of that number, so that the master is told nothing.
    TwoEpochs,
    /// There is no owner.
    NoOwner,
}
