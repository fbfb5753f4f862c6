//! What an appender is told to write, and what became of it.

use std::io::ErrorKind;

use mooncake_ids::Rid;

use crate::address::{Address, FileNumber};
use crate::filling::Value;

/// One object to be written.
pub struct Order {
    /// The placement that its record will be.
    pub rid: Rid,
    /// The object's id.
    pub object_id: Rid,
    /// Its key.
    pub key: Vec<u8>,
    /// CRC-32C that its bytes must have, if that is known.
    pub crc32c: Option<u32>,
    /// Its bytes.
    pub value: Box<dyn Value>,
    /// It is kept of a file that is given up: it goes before others, and may take the last file.
    pub is_kept: bool,
}

/// What became of orders and files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// All of a record is written.
    Written {
        /// Whose.
        rid: Rid,
        /// Where.
        address: Address,
    },
    /// A record came to nothing: no place names it.
    Lost {
        /// Whose.
        rid: Rid,
        /// Why.
        why: Loss,
    },
    /// A file has its footer, and both are synced.
    Sealed(FileNumber),
    /// The file system has no room for another file, or tiers that share a limit have reached it: an order waits.
    Short,
    /// A write or a sync of a file failed. It is closed, and what it holds is to be read before it counts.
    Suspect(FileNumber),
}

/// Why a record came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Its bytes were not there any more.
    SourceGone,
    /// Its bytes are not those of the object.
    WrongSum,
    /// The tier has no room for another file.
    NoRoom,
    /// The file system has none, or tiers that share a limit have reached it.
    NoSpace,
    /// Tiers that share a limit have so much that nothing which this one could give up leaves room for a file.
    OverLimit,
    /// The disk failed.
    Failed(ErrorKind),
    /// No record has such a key, or so many bytes; or there is too little room on the file system for so many.
    TooLarge,
}
