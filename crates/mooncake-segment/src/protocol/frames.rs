//! What travels on a data lane (TCP) and on an attach connection (Unix).
//!
//! Both open with the same 64-byte hello and its 64-byte reply. Afterwards
//! every message has a fixed size, so that neither side ever allocates for a
//! number that a stranger sent:
//!
//! ```text
//! lane    ->  Frame (64)  [bytes of a write]
//!         <-  Reply (32)  [bytes of a read, Trailer (16)]
//! attach  <-> Frame (64), both ways at any time
//! files   ->  Frame (64)
//!         <-  Reply (32)  and a descriptor
//! ```
//!
//! Little-endian throughout. Hellos and frames end with their own CRC-32C, so
//! that a lane that lost its place is closed instead of obeyed.

use std::time::Duration;

use mooncake_ids::SegmentUuid;
use mooncake_memory::crc32c;
use mooncake_wire::{LANE_PREFACE, PREFACE_LEN};

use crate::epoch::Epoch;

/// Version of lanes and attach connections.
pub(crate) const LANE_VERSION: u16 = 1;

/// In a hello to attach: this process says that it has taken an epoch only when the master knows all of its pins,
/// because that has said so, or the pins that it does not know have ended.
pub(crate) const FEATURE_KNOWN_PINS: u8 = 1 << 0;

/// In a hello to attach: this process locks memory that outlives its owners (docs/safety.md, rule 26).
pub(crate) const FEATURE_LOCKS: u8 = 1 << 2;

/// In the reply to it: this owner takes an [`Op::Introduce`].
pub(crate) const FEATURE_INTRODUCTIONS: u8 = 1 << 1;

/// Closed to make room for others, a lane has been idle for so long. Another peer may be at work on a younger one.
pub(crate) const LANE_KEPT: Duration = Duration::from_secs(10);

/// A peer closes a lane that it has not used for so long, so that no request meets an owner that is about to
/// close it.
pub(crate) const LANE_REUSED: Duration = Duration::from_secs(5);

pub(crate) const HELLO_LEN: usize = 64;
pub(crate) const FRAME_LEN: usize = 64;
pub(crate) const REPLY_LEN: usize = 32;
pub(crate) const TRAILER_LEN: usize = 16;

const FRAME_MAGIC: u32 = 0x4c4d_4352;
const REPLY_MAGIC: u32 = 0x6c4d_4352;
const TRAILER_MAGIC: u32 = 0x744d_4352;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Reads and writes over TCP.
    Lane,
    /// The segment's descriptors, over a Unix socket.
    Attach,
    /// Descriptors of a tier's files, over a Unix socket.
    Files,
}

/// First message of a connection, from the peer that opened it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    pub version: u16,
    pub purpose: Purpose,
    /// What the peer keeps to besides. Zero from older ones, and ignored by them.
    pub features: u8,
    pub session: u64,
    pub access_key: u64,
    pub uuid: SegmentUuid,
    /// With `start_time`, names the peer's process where the kernel
    /// cannot give its pidfd.
    pub pid: u32,
    pub start_time: u64,
}

impl Hello {
    pub(crate) fn encode(&self) -> [u8; HELLO_LEN] {
        let mut out = [0; HELLO_LEN];
        out[..PREFACE_LEN].copy_from_slice(&LANE_PREFACE);
        put(&mut out, 8, self.version.to_le_bytes());
        out[10] = match self.purpose {
            Purpose::Lane => 1,
            Purpose::Attach => 2,
            Purpose::Files => 3,
        };
        out[11] = self.features;
        put(&mut out, 12, self.pid.to_le_bytes());
        put(&mut out, 16, self.session.to_le_bytes());
        put(&mut out, 24, self.access_key.to_le_bytes());
        put(&mut out, 32, self.uuid.0);
        put(&mut out, 48, self.start_time.to_le_bytes());
        seal(&mut out);
        out
    }

    pub(crate) fn decode(from: &[u8; HELLO_LEN]) -> Option<Hello> {
        if !begins_as_hello(from) || !is_sealed(from) {
            return None;
        }
        let purpose = match from[10] {
            1 => Purpose::Lane,
            2 => Purpose::Attach,
            3 => Purpose::Files,
            _ => return None,
        };
        Some(Hello {
            version: u16::from_le_bytes(get(from, 8)),
            purpose,
            features: from[11],
            pid: u32::from_le_bytes(get(from, 12)),
            session: u64::from_le_bytes(get(from, 16)),
            access_key: u64::from_le_bytes(get(from, 24)),
            uuid: SegmentUuid(get(from, 32)),
            start_time: u64::from_le_bytes(get(from, 48)),
        })
    }
}

/// Whether bytes received so far can still become a hello.
pub(crate) fn begins_as_hello(bytes: &[u8]) -> bool {
    let seen = bytes.len().min(PREFACE_LEN);
    bytes[..seen] == LANE_PREFACE[..seen]
}

/// Answer to a hello; on an attach connection the descriptors come with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HelloReply {
    pub version: u16,
    pub status: Status,
    /// What the owner was asked to obey. The id is zero from older ones, and ignored by older peers.
    pub epoch: Epoch,
    pub bytes: u64,
    pub uuid: SegmentUuid,
    /// What the owner knows besides. Zero from older ones, and ignored by older peers.
    pub features: u8,
    /// How manieth owner of the memory this is, where it outlives them; else 0, as from older ones. A peer without
    /// [`FEATURE_LOCKS`] is never told another number.
    pub tenure: u32,
}

impl HelloReply {
    pub(crate) fn encode(&self) -> [u8; HELLO_LEN] {
        let mut out = [0; HELLO_LEN];
        out[..PREFACE_LEN].copy_from_slice(&LANE_PREFACE);
        put(&mut out, 8, self.version.to_le_bytes());
        out[10] = self.status as u8;
        out[11] = self.features;
        put(&mut out, 12, self.epoch.number.to_le_bytes());
        put(&mut out, 16, self.bytes.to_le_bytes());
        put(&mut out, 24, self.uuid.0);
        put(&mut out, 40, self.epoch.id.to_le_bytes());
        put(&mut out, 44, self.tenure.to_le_bytes());
        seal(&mut out);
        out
    }

    pub(crate) fn decode(from: &[u8; HELLO_LEN]) -> Option<HelloReply> {
        if !begins_as_hello(from) || !is_sealed(from) {
            return None;
        }
        Some(HelloReply {
            version: u16::from_le_bytes(get(from, 8)),
            status: Status::from_byte(from[10])?,
            epoch: Epoch { number: u16::from_le_bytes(get(from, 12)), id: u32::from_le_bytes(get(from, 40)) },
            bytes: u64::from_le_bytes(get(from, 16)),
            uuid: SegmentUuid(get(from, 24)),
            features: from[11],
            tenure: u32::from_le_bytes(get(from, 44)),
        })
    }
}

/// What a frame asks for or says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Lane: send me these bytes.
    Read,
    /// Lane: here come bytes.
    Write,
    /// Attach, to the owner: may I map it writable? Of memory that outlives its owners the rid is the tenure of the
    /// lock that I hold.
    Upgrade,
    /// Attach, to the peer: you may.
    Upgraded,
    /// Attach, to the peer, for a fence: say when nothing of yours writes this placement any more.
    Quiesce,
    /// Attach, to the owner: so it is, and the extent carries its tombstone.
    Quiesced,
    /// Attach, to the peer: say when you write nothing older than this epoch. The rid is the [`Epoch`]'s id, zero from
    /// older owners, and ignored by older peers.
    TakeEpoch,
    /// Attach, to the owner: so it is.
    EpochTaken,
    /// Attach, to the owner: the memory is unmapped, or never was mapped. Nothing comes behind it.
    Detached,
    /// Attach, to the owner: the rid is the mark of this session's process, by which its master believes its end.
    Introduce,
    /// Lane of a tier: the next reads are of this record. The offset is its address in bytes, the length that of the
    /// object, the epoch the length of its key less one.
    Record,
    /// For the files of a tier: send me one, to be read. The offset is its number; its descriptor comes with the reply.
    File,
    /// Attach, to the owner of memory that outlives it: may views begin? The rid is the tenure of the lock that I hold.
    View,
    /// Attach, to the peer: they may.
    Viewable,
}

const OPS: [Op; 14] = [
    Op::Read,
    Op::Write,
    Op::Upgrade,
    Op::Upgraded,
    Op::Quiesce,
    Op::Quiesced,
    Op::TakeEpoch,
    Op::EpochTaken,
    Op::Detached,
    Op::Introduce,
    Op::Record,
    Op::File,
    Op::View,
    Op::Viewable,
];

/// A request on a lane, a message on an attach connection. Bytes 32 to 48 are
/// the place of a signed capability, zero for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub op: Op,
    /// Number of its sender's epoch, or of the one that it is about.
    pub epoch: u16,
    /// Placement, or what the [`Op`] has in its place.
    pub rid: u64,
    /// First byte of its extent.
    pub offset: u64,
    /// Bytes of its extent.
    pub len: u64,
    /// Number of the request or the question; its answer has the same.
    pub sequence: u64,
}

impl Frame {
    /// A message that needs no extent.
    pub const fn plain(op: Op, epoch: u16) -> Frame {
        Frame { op, epoch, rid: 0, offset: 0, len: 0, sequence: 0 }
    }

    /// The question whether an epoch is obeyed.
    pub fn take_epoch(asked: Epoch) -> Frame {
        Frame { rid: asked.id.into(), ..Frame::plain(Op::TakeEpoch, asked.number) }
    }

    /// The epoch that an [`Op::TakeEpoch`] asks for.
    pub fn epoch_asked(&self) -> Epoch {
        Epoch { number: self.epoch, id: u32::try_from(self.rid).unwrap_or(0) }
    }

    pub(crate) fn encode(&self) -> [u8; FRAME_LEN] {
        let mut out = [0; FRAME_LEN];
        put(&mut out, 0, FRAME_MAGIC.to_le_bytes());
        out[4] = OPS.iter().position(|op| *op == self.op).unwrap_or(0) as u8 + 1;
        put(&mut out, 6, self.epoch.to_le_bytes());
        put(&mut out, 8, self.rid.to_le_bytes());
        put(&mut out, 16, self.offset.to_le_bytes());
        put(&mut out, 24, self.len.to_le_bytes());
        put(&mut out, 48, self.sequence.to_le_bytes());
        seal(&mut out);
        out
    }

    pub(crate) fn decode(from: &[u8; FRAME_LEN]) -> Option<Frame> {
        if u32::from_le_bytes(get(from, 0)) != FRAME_MAGIC || !is_sealed(from) {
            return None;
        }
        Some(Frame {
            op: *OPS.get(usize::from(from[4]).checked_sub(1)?)?,
            epoch: u16::from_le_bytes(get(from, 6)),
            rid: u64::from_le_bytes(get(from, 8)),
            offset: u64::from_le_bytes(get(from, 16)),
            len: u64::from_le_bytes(get(from, 24)),
            sequence: u64::from_le_bytes(get(from, 48)),
        })
    }
}

/// How a hello or a request was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done, or about to be.
    Ok = 0,
    /// The extent does not carry the rid that was asked for.
    Stale = 1,
    /// The extent carries a newer stamp, or a tombstone: the write is refused.
    Superseded = 2,
    /// The rid belongs to an epoch that the owner no longer takes writes of.
    OldEpoch = 3,
    /// Another write of the same extent is under way.
    Busy = 4,
    /// The owner serves no such segment.
    UnknownSegment = 5,
    /// The access key is wrong.
    WrongKey = 6,
    /// The extent lies outside of the segment.
    OutOfRange = 7,
    /// Too many lanes or attached processes.
    Overloaded = 8,
    /// The versions do not match.
    Version = 9,
    /// Another user, or a process whose end could not be proven: no descriptors.
    NotTrusted = 10,
    /// The request makes no sense here.
    Unsupported = 11,
    /// The owner could not read or write its own memory.
    Failed = 12,
}

const STATUSES: [Status; 13] = [
    Status::Ok,
    Status::Stale,
    Status::Superseded,
    Status::OldEpoch,
    Status::Busy,
    Status::UnknownSegment,
    Status::WrongKey,
    Status::OutOfRange,
    Status::Overloaded,
    Status::Version,
    Status::NotTrusted,
    Status::Unsupported,
    Status::Failed,
];

impl Status {
    fn from_byte(byte: u8) -> Option<Status> {
        STATUSES.get(usize::from(byte)).copied()
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Status::Ok => "done",
            Status::Stale => "the extent carries another placement",
            Status::Superseded => "the extent carries a newer stamp",
            Status::OldEpoch => "the owner takes no writes of that epoch any more",
            Status::Busy => "another write of that extent is under way",
            Status::UnknownSegment => "the peer serves no such segment",
            Status::WrongKey => "wrong access key",
            Status::OutOfRange => "the extent lies outside of the segment",
            Status::Overloaded => "the peer has too many connections",
            Status::Version => "the peer speaks another version",
            Status::NotTrusted => {
                "the peer gives its memory only to processes of its user whose end it can prove, and \
                only what it could seal"
            }
            Status::Unsupported => "the peer does not know that request",
            Status::Failed => "the peer could not reach its own memory",
        })
    }
}

/// First answer to a lane's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reply {
    pub status: Status,
    pub epoch: u16,
    pub sequence: u64,
    pub len: u64,
    /// What goes with the status: the stamp that was found, or the epoch that the owner obeys.
    pub detail: u64,
}

impl Reply {
    pub(crate) fn encode(&self) -> [u8; REPLY_LEN] {
        let mut out = [0; REPLY_LEN];
        put(&mut out, 0, REPLY_MAGIC.to_le_bytes());
        out[4] = self.status as u8;
        put(&mut out, 6, self.epoch.to_le_bytes());
        put(&mut out, 8, self.sequence.to_le_bytes());
        put(&mut out, 16, self.len.to_le_bytes());
        put(&mut out, 24, self.detail.to_le_bytes());
        out
    }

    pub(crate) fn decode(from: &[u8; REPLY_LEN]) -> Option<Reply> {
        if u32::from_le_bytes(get(from, 0)) != REPLY_MAGIC {
            return None;
        }
        Some(Reply {
            status: Status::from_byte(from[4])?,
            epoch: u16::from_le_bytes(get(from, 6)),
            sequence: u64::from_le_bytes(get(from, 8)),
            len: u64::from_le_bytes(get(from, 16)),
            detail: u64::from_le_bytes(get(from, 24)),
        })
    }
}

/// Follows a read's bytes: what the owner found on the stamps after the kernel
/// had copied them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub status: Status,
    pub sequence: u64,
}

impl Trailer {
    pub(crate) fn encode(&self) -> [u8; TRAILER_LEN] {
        let mut out = [0; TRAILER_LEN];
        put(&mut out, 0, TRAILER_MAGIC.to_le_bytes());
        out[4] = self.status as u8;
        put(&mut out, 8, self.sequence.to_le_bytes());
        out
    }

    pub(crate) fn decode(from: &[u8; TRAILER_LEN]) -> Option<Trailer> {
        if u32::from_le_bytes(get(from, 0)) != TRAILER_MAGIC {
            return None;
        }
        Some(Trailer { status: Status::from_byte(from[4])?, sequence: u64::from_le_bytes(get(from, 8)) })
    }
}

fn put<const N: usize>(out: &mut [u8], at: usize, bytes: [u8; N]) {
    out[at..at + N].copy_from_slice(&bytes);
}

fn get<const N: usize>(from: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&from[at..at + N]);
    out
}

pub(crate) fn seal(out: &mut [u8; 64]) {
    let crc = crc32c(&out[..60]);
    put(out, 60, crc.to_le_bytes());
}

fn is_sealed(from: &[u8; 64]) -> bool {
    crc32c(&from[..60]).to_le_bytes() == from[60..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_comes_back_as_it_went() {
        for purpose in [Purpose::Lane, Purpose::Attach] {
            let hello = Hello {
                version: 7,
                purpose,
                features: 0x81,
                session: 1,
                access_key: u64::MAX,
                uuid: SegmentUuid([9; 16]),
                pid: 5,
                start_time: 1 << 50,
            };
            assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        }
        for status in STATUSES {
            let epoch = Epoch { number: 3, id: 1 << 31 | 9 };
            let reply = HelloReply {
                version: 1,
                status,
                epoch,
                bytes: 1 << 40,
                uuid: SegmentUuid([1; 16]),
                features: 2,
                tenure: 3,
            };
            assert_eq!(HelloReply::decode(&reply.encode()), Some(reply));
            let reply = Reply { status, epoch: 3, sequence: 1, len: 2, detail: 3 };
            assert_eq!(Reply::decode(&reply.encode()), Some(reply));
            let trailer = Trailer { status, sequence: 1 << 60 };
            assert_eq!(Trailer::decode(&trailer.encode()), Some(trailer));
        }
        for op in OPS {
            let frame = Frame { op, epoch: 1, rid: 2, offset: 3, len: 4, sequence: 5 };
            assert_eq!(Frame::decode(&frame.encode()), Some(frame));
        }
    }

    #[test]
    fn the_id_of_an_epoch_lies_where_older_versions_have_zeros() {
        let of = |id| HelloReply {
            version: 1,
            status: Status::Ok,
            epoch: Epoch { number: 3, id },
            bytes: 1,
            uuid: SegmentUuid([1; 16]),
            features: 2,
            tenure: 0,
        };
        let (known, unknown) = (of(u32::MAX).encode(), of(0).encode());
        let differ: Vec<usize> = (0..HELLO_LEN - 4).filter(|at| known[*at] != unknown[*at]).collect();
        assert_eq!(differ, [40, 41, 42, 43]);
        for id in [0, 9, u32::MAX] {
            let asked = Epoch { number: 3, id };
            let frame = Frame::take_epoch(asked);
            assert_eq!((frame.op, frame.epoch, frame.epoch_asked()), (Op::TakeEpoch, 3, asked));
        }
        assert_eq!(Frame::take_epoch(Epoch::numbered(3)), Frame::plain(Op::TakeEpoch, 3), "as an older owner asks");
    }

    #[test]
    fn one_changed_byte_of_a_frame_or_hello_is_noticed() {
        let frame = Frame { op: Op::Write, epoch: 1, rid: 2, offset: 3, len: 4, sequence: 5 }.encode();
        for at in 0..FRAME_LEN {
            let mut bad = frame;
            bad[at] ^= 0x10;
            assert_eq!(Frame::decode(&bad), None, "byte {at}");
            assert_eq!(Hello::decode(&bad), None);
        }
    }
}
