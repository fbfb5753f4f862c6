//! What callers ask and what they are told.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::ids::{Replica, SegmentNo};
use mooncake_ids::{Rid, SegmentUuid, SessionId, TierUuid};

/// Where a mutation comes from: whose it is, and which of theirs, so that a retry gets the same reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The session that asks.
    pub session: SessionId,
    /// Its sequence number, from 1.
    pub sequence: u64,
    /// Every lower sequence has been answered: their replies can be forgotten.
    pub answered_below: u64,
}

/// How long an object must stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum PinKind {
    /// Evicted in policy order.
    #[default]
    None,
    /// Evicted only when nothing else is left, until it lapses (ms from commit).
    Soft {
        /// Lifetime from commit, milliseconds.
        ttl_ms: u64,
    },
    /// Never evicted.
    Hard,
    /// Of a replacement: without the soft pin that the value had, where [`PinKind::None`] keeps it.
    Cleared,
}

/// What a client can be told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sight {
    /// Replicas in memory: its version knows no others.
    #[default]
    Memory,
    /// Those on tiers, too.
    Tiers,
}

/// How a put wants to be placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutConfig {
    /// Replicas wanted, each on another client; fewer clients store fewer.
    pub replica_num: u32,
    /// Segment names to try first, in order.
    pub preferred_segments: Vec<String>,
    /// Pin of the object.
    pub pin: PinKind,
    /// Prefer a segment of the writer's own host.
    pub prefer_local: bool,
    /// Replace what is there: in a new extent, swapped when the put ends. The value that is there stays until then, and
    /// stays if the put ends badly.
    pub replace: bool,
    /// Groups of the keys, in their order: none for all, or one each, of which an empty one is none.
    pub groups: Vec<Box<[u8]>>,
    /// The lowest rid that the same call has been given so far; none in its first request. What was stored since then
    /// leaves after what has had the second that a look-up promises, so that a call does not evict its own keys.
    pub first_rid: Option<Rid>,
    /// What is not placed now the caller asks for once more, and waits then: nothing is evicted for it that an owner
    /// can still write to its tier.
    pub comes_again: bool,
}

impl Default for PutConfig {
    /// One replica, anywhere, without a pin.
    fn default() -> Self {
        PutConfig {
            replica_num: 1,
            preferred_segments: Vec::new(),
            pin: PinKind::None,
            prefer_local: false,
            replace: false,
            groups: Vec::new(),
            first_rid: None,
            comes_again: false,
        }
    }
}

/// What the start of a put of one key came to.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StartOutcome {
    /// Write these, then end them by rid.
    Placed(SmallVec<[Replica; 1]>),
    /// The key is there already.
    Exists,
    /// Another put of this key is under way.
    Busy(String),
    /// No room now; says what holds the space.
    Full(String),
    /// Larger than any segment's full size less its hard-pinned objects.
    TooLarge(String),
    /// Bad size or a cap of this session. A request that is refused as a whole says why of each key, in the same words.
    Refused(Cow<'static, str>),
}

// Each is cloned twice on its way to the log and to the session; what is derived would copy replicas one by one.
impl Clone for StartOutcome {
    fn clone(&self) -> Self {
        match self {
            StartOutcome::Placed(replicas) => StartOutcome::Placed(SmallVec::from_slice(replicas)),
            StartOutcome::Exists => StartOutcome::Exists,
            StartOutcome::Busy(reason) => StartOutcome::Busy(reason.clone()),
            StartOutcome::Full(reason) => StartOutcome::Full(reason.clone()),
            StartOutcome::TooLarge(reason) => StartOutcome::TooLarge(reason.clone()),
            StartOutcome::Refused(reason) => StartOutcome::Refused(reason.clone()),
        }
    }
}

/// Result of `put_start`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PutStarted {
    /// One outcome per key.
    Now(Vec<StartOutcome>),
    /// Nothing could be placed; the reply comes as [`crate::Effects::woken`].
    Parked(crate::ids::Ticket),
}

/// What the writer says of one reservation (all replicas of one key).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Per replica: its bytes are whole.
    pub replicas: SmallVec<[(Rid, bool); 1]>,
    /// CRC-32C (Castagnoli) of the whole object.
    pub crc32c: u32,
    /// Its writer asks again where the owners of all good replicas are away. Else it gives that up, and writes
    /// elsewhere.
    pub stays: bool,
}

/// What became of an ended reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndOutcome {
    /// Readable from now on.
    Committed,
    /// The reservation is no more, or the owners of all good replicas are away; nothing was stored.
    Superseded,
    /// No replica was good: the put is aborted; nothing was stored.
    Aborted,
    /// The owners of all good replicas are away. The reservation stays, as its writer wishes.
    Hidden,
}

/// What a lookup finds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Size of the object, bytes.
    pub size: u64,
    /// CRC-32C of the whole object.
    pub crc32c: u32,
    /// Readable replicas only.
    pub replicas: SmallVec<[Replica; 1]>,
}

/// What became of a remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RemoveOutcome {
    /// Unlinked.
    Removed,
    /// Was not there.
    Missing,
    /// Looked up a moment ago, and `force` was not given.
    Protected,
    /// A put of it is under way.
    Busy,
}

/// A segment as its owner mounts it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentSpec {
    /// UUID of the memory.
    pub uuid: SegmentUuid,
    /// Name that `preferred_segments` uses.
    pub name: String,
    /// Size, bytes; whole granules count.
    pub bytes: u64,
    /// How peers reach it: the shell's business, kept verbatim.
    pub endpoint: Vec<u8>,
}

/// A tier as its owner mounts it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierSpec {
    /// UUID of its folder.
    pub uuid: TierUuid,
    /// By which another session takes it over.
    pub secret: [u8; 16],
    /// Name of its owner.
    pub name: String,
    /// Bytes that its files may have.
    pub bytes: u64,
    /// Blocks of a file of one number; an address divided by them is the number of its file.
    pub file_blocks: u64,
    /// How readers reach it: the shell's business, kept verbatim.
    pub endpoint: Vec<u8>,
}

/// What becomes of a record in a file of a tier that is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// No object has it.
    Dead,
    /// Its object is on the tier no more.
    Dropped,
    /// It is to be written once more, with this rid, and answered like an order.
    Keep(Rid),
}

/// How far a segment is populated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Populated {
    /// UUID of the memory.
    pub uuid: SegmentUuid,
    /// Bytes from its start.
    pub bytes: u64,
    /// No more can be had.
    pub failed: bool,
}

/// Identity of a session: enough to place it on its host and to know it again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSpec {
    /// Shown by each connection that attaches to or resumes the session; random, from the shell.
    pub secret: u64,
    /// "host:port" name of the client.
    pub name: String,
    /// Boot id of its host, or empty: sessions with the same one share a host.
    pub boot_id: Vec<u8>,
    /// Process identity for proofs: the shell's business, kept verbatim.
    pub process: Vec<u8>,
}

/// A session's memory is to outlive its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// For how long without an heir. 0: no more.
    pub ms: u64,
    /// What an heir shows. Random, from the first owner; only those that have the memory know it.
    pub secret: [u8; 16],
    /// That of the claim by which this session has the memory, 0 if it made it.
    pub turn: u64,
}

/// What an heir shows for memory that it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// See [`Keep`].
    pub secret: [u8; 16],
    /// Higher than that of every hello of an earlier owner of this memory, and of earlier ones of its own.
    pub turn: u64,
    /// The segments, each with how peers reach it.
    pub segments: Vec<(SegmentUuid, Vec<u8>)>,
    /// Others of the former session, whose memory could not be taken over: they are Gone, as all that is not claimed.
    pub lost: Vec<SegmentUuid>,
}

/// What an heir is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inherited {
    /// Its session.
    pub session: SessionId,
    /// Those of its segments that are Gone: they must not be mounted again.
    pub gone: Vec<SegmentUuid>,
}

/// What a session is told when it comes back.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resumed {
    /// Those of its segments that are Gone, or that this log never knew: they must not be mounted again.
    pub gone: Vec<SegmentUuid>,
    /// Views that it listed and of which this log does not know where they are, once per view. Its end that did is
    /// lost: their reader alone can keep their places from being given out, by obeying no new epoch before they have
    /// ended.
    pub unknown_pins: Vec<Rid>,
}

/// Why an operation was refused as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Refused {
    /// No such session, or it is over.
    #[error("session {0} is unknown or over; set up again")]
    UnknownSession(u64),
    /// The secret does not match.
    #[error("wrong secret for session {0}")]
    WrongSecret(u64),
    /// A UUID that is Gone is never mounted again.
    #[error("segment {0:02x?} is gone for good; give its memory back and mount a new one")]
    SegmentGone([u8; 16]),
    /// Mounted already by another session.
    #[error("segment {0:02x?} is mounted by session {1}")]
    SegmentTaken([u8; 16], u64),
    /// A size that makes no sense.
    #[error("segment of {0} bytes; the smallest is one granule of 1024 bytes, the largest 4 TiB less one granule")]
    SegmentSize(u64),
    /// The sequence was answered and its reply forgotten.
    #[error("sequence {sequence} is below {answered_below}, which this client said it has answers for")]
    Forgotten {
        /// The sequence of the request.
        sequence: u64,
        /// What the session has acknowledged.
        answered_below: u64,
    },
    /// The sequence was used for another kind of request.
    #[error("sequence {sequence} of session {session} was used for another kind of request")]
    SequenceReused {
        /// The session.
        session: u64,
        /// The sequence.
        sequence: u64,
    },
    /// Too many unanswered mutations.
    #[error("session {0} has {1} unanswered mutations, the limit is {2}")]
    TooManyUnanswered(u64, usize, usize),
    /// Too many sessions.
    #[error("{0} sessions are open or away already; those that are away end ten minutes after they left")]
    TooManySessions(usize),
    /// The client gave the mutation up before it was carried out.
    #[error("sequence {sequence} was given up by its client before it came; it is not carried out")]
    Abandoned {
        /// The sequence of the request.
        sequence: u64,
    },
    /// A folder with records that this log knows nothing of: it is of another log, or was forgotten.
    #[error(
        "tier {0} has records and is not of this log; it is not mounted, and deleted when it has been free for a day"
    )]
    TierUnknown(TierUuid),
    /// Mounted already by another session.
    #[error("tier {0} is mounted by session {1}")]
    TierTaken(TierUuid, u64),
    /// Its folder's secret is not the one that this log knows.
    #[error("the secret of tier {0} is not the one that this log knows: its folder is a copy of an earlier one")]
    TierSecret(TierUuid),
    /// Sizes that make no sense.
    #[error("tier {0} of {1} bytes, {2} blocks a file: one block a file is the least, 65,536 the most")]
    TierSize(TierUuid, u64, u64),
    /// The operator wants none.
    #[error("the master takes no tiers: it was started with --enable_offload=false")]
    TiersNotAllowed,
    /// An heir's claim to memory that is not kept, or not for it.
    #[error("none of these segments is kept for an heir with that secret on this boot; mount new memory")]
    NotKept,
    /// An heir's claim that was sent before another one.
    #[error("claim {0} comes behind claim {1} to the same memory")]
    OldClaim(u64, u64),
    /// Its session was away, and another one has adopted what it wrote.
    #[error("tier {0} was adopted by another session meanwhile; begin another one")]
    TierAdopted(TierUuid),
    /// What its session said of it comes too late to count.
    #[error("tier {0}: its session has said something later of it, or is away; it is mounted when its anchor is back")]
    TierTooLate(TierUuid),
    /// A session says which file system it reads, and its anchor is not there.
    #[error("session {0} is away: what it shares is said again once its anchor is back")]
    SessionAway(u64),
}

/// A remembered reply to a mutation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Remembered {
    /// Of `put_start`.
    PutStart(Vec<StartOutcome>),
    /// Of `put_end`.
    PutEnd(Vec<EndOutcome>),
    /// Of `pin`.
    Pin(Vec<Option<Found>>),
    /// Of `remove`.
    Remove(Vec<RemoveOutcome>),
    /// Of `remove_all`: number removed.
    RemoveAll(u64),
    /// Of `mount` and `mount_tier`.
    Mount(SegmentNo),
    /// Of abort, unpin, unmount, keep.
    Done,
    /// It was refused.
    Refused(Refused),
    /// Of `reclaim`.
    Reclaim(Vec<Verdict>),
}
