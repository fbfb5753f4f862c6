//! Durable changes, as the log has them.

use serde::{Deserialize, Serialize, Serializer};
use smallvec::SmallVec;

use crate::ids::{Extent, Replica, SegmentNo};
use crate::request::{PinKind, Remembered, SegmentSpec, SessionSpec, TierSpec};
use mooncake_ids::{FileSystemUuid, Rid, SegmentUuid, SessionId};

/// One change of durable state. Replaying the records of a log in order on an
/// empty core gives the same durable state. Keys and names of groups are `K`: the record's own, or those of bytes that
/// it was read from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(serialize = "K: AsRef<[u8]>"))]
pub enum Record<K = Box<[u8]>> {
    /// A new epoch: rids of this epoch follow.
    Epoch(u16),
    /// A session began.
    SessionOpened {
        /// Its id.
        session: SessionId,
        /// What the client said of itself.
        spec: SessionSpec,
    },
    /// A session is over.
    SessionOver(SessionId),
    /// A segment was seen.
    SegmentMounted {
        /// Its number.
        number: SegmentNo,
        /// Its owner.
        session: SessionId,
        /// What it is.
        spec: SegmentSpec,
        /// The lowest epoch that may place in it.
        epoch: u16,
    },
    /// A segment obeys an epoch: it may be placed in again.
    SegmentTookEpoch {
        /// Its number.
        number: SegmentNo,
        /// The epoch.
        epoch: u16,
    },
    /// A segment's memory is populated up to here; what lies above is not placed in yet.
    SegmentPopulated {
        /// Its number.
        number: SegmentNo,
        /// Bytes from its start.
        bytes: u64,
    },
    /// A segment is Gone, for ever.
    SegmentGone(SegmentNo),
    /// This UUID is Gone and must not be mounted again, and there may be views on it that no record knows: in
    /// snapshots, and in a log before the end of a session that may still have some.
    SegmentForgotten {
        /// Its UUID.
        uuid: SegmentUuid,
        /// The number that it had.
        number: SegmentNo,
    },
    /// Extents were handed to a writer.
    Reserved {
        /// The writer.
        session: SessionId,
        /// Key of the object to be.
        #[serde(serialize_with = "as_bytes")]
        key: K,
        /// Its size, bytes.
        size: u64,
        /// Its pin once committed.
        pin: PinKind,
        /// Its placements.
        replicas: SmallVec<[Replica; 1]>,
    },
    /// A reservation became an object; replicas not listed went to quarantine.
    Committed {
        /// Any rid of the reservation.
        reservation: Rid,
        /// The good replicas.
        good: SmallVec<[Rid; 1]>,
        /// CRC-32C of the object.
        crc32c: u32,
    },
    /// A reservation is no more; its extents went to quarantine.
    Dropped(Rid),
    /// The owner proved that nothing can land in a quarantined extent any more.
    Released(Rid),
    /// An object was removed or evicted; named by its first replica.
    Removed {
        /// Its key.
        #[serde(serialize_with = "as_bytes")]
        key: K,
        /// A replica's rid, to be sure.
        rid: Rid,
    },
    /// One replica of an object was found bad or lost.
    ReplicaDropped {
        /// Key of the object.
        #[serde(serialize_with = "as_bytes")]
        key: K,
        /// The replica.
        rid: Rid,
    },
    /// A replica was pinned for one view more of a reader.
    Pinned {
        /// The reader.
        session: SessionId,
        /// What.
        rid: Rid,
        /// Where: the object may leave before the pin does.
        extent: Extent,
        /// Key of the object, `None` when it has left already (of other views over the same placement, and in
        /// snapshots).
        #[serde(serialize_with = "as_bytes_if_any")]
        key: Option<K>,
    },
    /// A reader's view ended: the pin is for one less.
    Unpinned {
        /// The former reader.
        session: SessionId,
        /// What.
        rid: Rid,
    },
    /// The reply to a mutation, for a retry of it.
    Replied {
        /// The session that asked.
        session: SessionId,
        /// Its sequence.
        sequence: u64,
        /// Lower ones are forgotten.
        answered_below: u64,
        /// The reply.
        reply: Remembered,
    },
    /// Snapshots only: a whole committed object.
    Object {
        /// Its key.
        #[serde(serialize_with = "as_bytes")]
        key: K,
        /// Its size, bytes.
        size: u64,
        /// CRC-32C of it.
        crc32c: u32,
        /// Its pin.
        pin: PinKind,
        /// Its replicas.
        replicas: SmallVec<[Replica; 1]>,
    },
    /// Snapshots only: an extent in quarantine.
    Quarantined {
        /// The reservation's replica.
        replica: Replica,
        /// The session that was writing it.
        writer: SessionId,
        /// The writer said that it will not touch it again.
        writer_done: bool,
    },
    /// The counters that must never run backwards: in snapshots, and behind each raise of the epoch, where the session
    /// is the [`Epoch`](crate::Epoch)'s id.
    Counters {
        /// Epoch of the last rid.
        epoch: u16,
        /// Counter of the last rid.
        rid: u64,
        /// Last session id.
        session: u64,
        /// Last segment number.
        segment: u32,
    },
    /// The writer of a quarantined extent says that it is done with it.
    WriterDone(Rid),
    /// A segment will never be populated further than up to here: that is its capacity.
    SegmentEnds {
        /// Its number.
        number: SegmentNo,
        /// Bytes from its start.
        bytes: u64,
    },
    /// As `Reserved`, of a put that replaces, or whose object is to be in a group.
    ReservedWith {
        /// The writer.
        session: SessionId,
        /// Key of the object to be.
        #[serde(serialize_with = "as_bytes")]
        key: K,
        /// Its size, bytes.
        size: u64,
        /// Its pin once committed.
        pin: PinKind,
        /// Its placements.
        replicas: SmallVec<[Replica; 1]>,
        /// Its group, empty for none.
        #[serde(serialize_with = "as_bytes")]
        group: K,
        /// It replaces the object that is there, which passes on its hard pin and group, and its soft pin if `pin` is
        /// `None`.
        replaces: bool,
    },
    /// Snapshots only: as `Object`, of one in a group.
    GroupedObject {
        /// Its key.
        #[serde(serialize_with = "as_bytes")]
        key: K,
        /// Its size, bytes.
        size: u64,
        /// CRC-32C of it.
        crc32c: u32,
        /// Its pin.
        pin: PinKind,
        /// Its replicas.
        replicas: SmallVec<[Replica; 1]>,
        /// Its group.
        #[serde(serialize_with = "as_bytes")]
        group: K,
    },
    /// A segment is to be Gone when a grace is over; until then nothing new is placed there.
    SegmentLeaves {
        /// Its number.
        number: SegmentNo,
        /// Milliseconds from now on, or from the start of a master that replays this.
        grace_ms: u64,
    },
    /// Snapshots only: what a session committed last, oldest first. A repeat of an End is told by it.
    CommittedBy {
        /// The writer.
        session: SessionId,
        /// Each replica's rid.
        rids: Vec<Rid>,
    },
    /// A tier was mounted, for the first time or again.
    TierSeen {
        /// Its number, among those of segments.
        number: SegmentNo,
        /// The session that has it from now on.
        session: SessionId,
        /// What it is.
        spec: TierSpec,
        /// Above the numbers of all its files that the log has heard of.
        head: u64,
    },
    /// These rids are for orders to owners, which no log has.
    TierRids {
        /// The first.
        from: Rid,
        /// How many.
        count: u32,
    },
    /// An object is on a tier from now on, and nowhere else on one.
    TierAdded {
        /// Its key.
        #[serde(serialize_with = "as_bytes")]
        key: K,
        /// The lowest rid with which it was committed.
        object_id: Rid,
        /// Where: the offset is that from the tier's first file.
        replica: Replica,
    },
    /// Snapshots only: as `GroupedObject`, of one that is on a tier, or has lost the place that gave it its id.
    TieredObject {
        /// Its key.
        #[serde(serialize_with = "as_bytes")]
        key: K,
        /// Its size, bytes.
        size: u64,
        /// CRC-32C of it.
        crc32c: u32,
        /// Its pin.
        pin: PinKind,
        /// Its replicas in memory.
        replicas: SmallVec<[Replica; 1]>,
        /// Its group, empty for none.
        #[serde(serialize_with = "as_bytes")]
        group: K,
        /// The lowest rid with which it was committed.
        object_id: Rid,
        /// The one on a tier.
        tier: Option<Replica>,
    },
    /// An object that a tier has is being copied to memory. Its key is free for puts meanwhile.
    Promoting {
        /// The session that writes it.
        session: SessionId,
        /// The object's key.
        #[serde(serialize_with = "as_bytes")]
        key: K,
        /// See `TierAdded`.
        object_id: Rid,
        /// Its size, bytes.
        size: u64,
        /// The placement of the copy.
        replica: Replica,
    },
    /// Such a copy is whole: its object has that replica from now on.
    ReplicaAdded {
        /// The replica.
        rid: Rid,
    },
    /// The end of a session's process is not its end from now on.
    SessionKept {
        /// The session.
        session: SessionId,
        /// For how long. 0: it is kept no more.
        ms: u64,
        /// What its heir shows.
        secret: [u8; 16],
        /// An heir's turn is higher.
        turn: u64,
    },
    /// An heir has a segment's memory. Nothing is placed there before it obeys the epoch.
    SegmentMoved {
        /// Its number.
        number: SegmentNo,
        /// Its owner from now on.
        session: SessionId,
        /// How peers reach that: the shell's business, kept verbatim.
        endpoint: Vec<u8>,
    },
    /// As `TierSeen`, of a tier on a file system that sessions share.
    SharedTierSeen {
        /// Its number, among those of segments.
        number: SegmentNo,
        /// The session that has it from now on.
        session: SessionId,
        /// What it is.
        spec: TierSpec,
        /// Above the numbers of all its files that the log has heard of.
        head: u64,
        /// On which file system it lies.
        file_system: FileSystemUuid,
    },
}

/// A key is written as a whole. As the sequence of numbers that it else is, each byte of it would be a call.
fn as_bytes<K: AsRef<[u8]>, S: Serializer>(key: &K, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(key.as_ref())
}

fn as_bytes_if_any<K: AsRef<[u8]>, S: Serializer>(key: &Option<K>, serializer: S) -> Result<S::Ok, S::Error> {
    struct Bytes<'a>(&'a [u8]);
    impl Serialize for Bytes<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_bytes(self.0)
        }
    }
    key.as_ref().map(|key| Bytes(key.as_ref())).serialize(serializer)
}

/// A record whose keys lie in the bytes that it was read from.
pub type RecordRef<'a> = Record<&'a [u8]>;
