//! Records of a tier, as lanes carry them: named by a frame of its own, then read in any parts.

use std::fmt;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use mooncake_ids::Rid;

use crate::protocol::frames::{Frame, Op};

/// Where a master says that an object lies on a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordAddress {
    /// The placement.
    pub rid: Rid,
    /// Its first byte, from the tier's first file on.
    pub offset: u64,
    /// Bytes of the object.
    pub size: u64,
    /// Bytes of its key, 1 to 65,536.
    pub key_bytes: u32,
}

impl RecordAddress {
    /// The frame that names it: the epoch's place has the length of the key, less one.
    pub(crate) fn frame(&self, sequence: u64) -> Frame {
        let epoch = self.key_bytes.wrapping_sub(1) as u16;
        Frame { op: Op::Record, epoch, rid: self.rid.0, offset: self.offset, len: self.size, sequence }
    }

    pub(crate) fn of(frame: &Frame) -> Option<RecordAddress> {
        let (rid, key_bytes) = (Rid(frame.rid), u32::from(frame.epoch) + 1);
        rid.is_placement().then_some(RecordAddress { rid, offset: frame.offset, size: frame.len, key_bytes })
    }
}

/// Why a record was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Its file is not there any more.
    #[error("its file is not there any more")]
    Gone,
    /// Another record lies there, or a damaged one.
    #[error("what lies there is another record, or damaged")]
    Wrong,
    /// All buffers are in use, or the disk did not answer in time.
    #[error("all buffers of the tier are in use, or its disk did not answer in time")]
    Busy,
    /// The disk failed.
    #[error("the disk of the tier failed")]
    Failed,
}

/// An owner's tier. Called on the threads of its lanes and of those that ask for its files.
pub trait Records: Send + Sync + fmt::Debug {
    /// Reads for one lane.
    fn reads(self: Arc<Self>) -> Box<dyn RecordReads>;

    /// The file of a number, to be read by another process of this user.
    fn file(&self, number: u64) -> Result<OwnedFd, RecordError>;
}

/// Which part it is of what a request is for. Its parts come right behind one another; the last does not come where one
/// was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordPart {
    /// Nothing of it was asked for before.
    pub is_first: bool,
    /// Nothing of it is asked for behind.
    pub is_last: bool,
}

/// Reads of one lane: several are under way at a time, and end in the order in which they were asked for.
pub trait RecordReads {
    /// Asks for as many bytes of the record from one on as the range has, which lies in `bytes`.
    fn ask(&mut self, record: &RecordAddress, from: u64, bytes: Vec<u8>, into: Range<usize>, part: RecordPart);

    /// Waits for the end of the oldest, and gives its bytes back; none if nothing was asked for. What it gives has
    /// proven itself.
    fn next(&mut self) -> Option<(Vec<u8>, Result<(), RecordError>)>;
}
