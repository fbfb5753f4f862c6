//! What an operation leaves behind: durable records, messages to owners and
//! wake-ups of parked requests. The shell logs, sends and wakes, in this order.

use crate::epoch::Epoch;
use crate::ids::{Extent, Replica, SegmentNo, Ticket};
use crate::record::Record;
use crate::request::StartOutcome;
use mooncake_ids::{Rid, SegmentUuid, SessionId, TierUuid};

/// Everything that one operation did beyond its reply.
#[derive(Debug, Default)]
pub struct Effects {
    /// Append these, in order, before any reply goes out.
    pub records: Vec<Record>,
    /// Send these on the sessions' anchors.
    pub pushes: Vec<(To, Push)>,
    /// Answer these parked requests.
    pub woken: Vec<(Ticket, Vec<StartOutcome>)>,
}

/// The addressee of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    /// A session.
    Session(SessionId),
    /// All that have an anchor. The others are told when they are back.
    Everybody,
}

impl Effects {
    /// True when there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.pushes.is_empty() && self.woken.is_empty()
    }
}

/// A message to a session's anchor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Push {
    /// To an owner: see `Fence` of the protocol.
    Fence {
        /// The segment.
        uuid: SegmentUuid,
        /// What to fence.
        replica: Replica,
        /// The session that was writing.
        writer: SessionId,
        /// It said that it is done.
        writer_done: bool,
    },
    /// To an owner: is this replica what it should be?
    Recheck {
        /// The segment.
        uuid: SegmentUuid,
        /// Which.
        replica: Replica,
        /// CRC-32C that it should have.
        crc32c: u32,
    },
    /// To an owner: obey this epoch, fence the older ones.
    TakeEpoch(Epoch),
    /// To every session: a segment is Gone; its memory is to be given back, but for
    /// the pinned extents. Or a tier is, whose UUID stands for a segment's: its owner begins another one.
    SegmentGone {
        /// The segment, or the tier.
        uuid: SegmentUuid,
        /// Its number.
        number: SegmentNo,
        /// What views still hold.
        pinned: Vec<Extent>,
    },
    /// To a session: it is over.
    SessionOver(String),
    /// To an owner: write this object to a tier, and answer with where it lies.
    TierOrder {
        /// The tier.
        tier: TierUuid,
        /// Rid of the record.
        rid: Rid,
        /// The object's key.
        key: Box<[u8]>,
        /// See [`Record::TierAdded`].
        object_id: Rid,
        /// CRC-32C that the value must have.
        crc32c: u32,
        /// Where it lies in memory.
        source: Replica,
    },
    /// To an owner: copy this object from a tier to memory.
    TierPromote {
        /// The tier.
        tier: TierUuid,
        /// The object's key.
        key: Box<[u8]>,
        /// CRC-32C that the value must have.
        crc32c: u32,
        /// The record.
        from: Replica,
        /// Where it is to be written.
        to: Replica,
    },
    /// To an owner: no object needs these files, of a tier that may have no more records.
    TierRetire {
        /// The tier.
        tier: TierUuid,
        /// The epoch: an owner obeys the highest alone.
        epoch: u16,
        /// Their numbers.
        files: Vec<u64>,
        /// It has as many records as it may: its oldest file is to be given up.
        is_full: bool,
    },
    /// To an owner that closes: all that it is to write before is ordered.
    TierAllOrdered {
        /// The tier.
        tier: TierUuid,
    },
    /// To the owner of a tier on a file system that sessions share.
    TierShared {
        /// The tier.
        tier: TierUuid,
        /// How many write tiers there.
        writers: usize,
        /// A tier there whose writer is gone: it is to be adopted.
        left: Option<TierUuid>,
    },
    /// To an owner: is this record what it should be?
    TierRecheck {
        /// The tier.
        tier: TierUuid,
        /// Which.
        replica: Replica,
        /// Key of its object.
        key: Box<[u8]>,
    },
}
