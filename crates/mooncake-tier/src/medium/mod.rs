//! What tiers lie on: a folder of files, and queues of operations on them. On a real file system ([`folder`]) io_uring
//! carries operations out ([`ring`]), or threads do ([`threads`]); a disk in virtual time fails as tests want it
//! ([`faulty`]).

pub mod faulty;
pub mod file_system;
pub mod folder;
#[allow(unsafe_code, reason = "the kernel writes to the memory of operations that are under way")]
pub mod ring;
pub mod shared_limit;
pub mod threads;

use std::fmt::Debug;
use std::io;
use std::time::Duration;

use crate::address::FileNumber;
use crate::slots::Slot;

/// Files of records, to be read.
pub trait Files: Clone + Send + Debug + 'static {
    /// An open file.
    type File: Clone + Send + Debug;
    /// Operations under way.
    type Queue: Queue<File = Self::File>;

    /// A file to be read. Errors as of [`Medium::open`].
    fn open_file(&self, number: FileNumber) -> io::Result<Self::File>;

    /// A queue for that many operations at a time.
    fn queue(&self, depth: usize) -> io::Result<Self::Queue>;
}

/// A folder. All its calls are made seldom, and may take as long as the disk does.
pub trait Medium: Files {
    /// As long as it lives, no other process has the same one.
    type Lock: Send + Debug;

    /// Its files.
    fn list(&self) -> io::Result<Vec<Listed>>;

    /// A new file of that many bytes, all of which the file system has set aside. An error if it is there already.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Self::File>;

    /// Whether what is written to a file is on the file system once the write has ended, as far as other hosts are to
    /// find it there: no page cache of this one is between.
    fn is_direct(&self, _file: &Self::File) -> bool {
        true
    }

    /// A file to be read, and to be written if `writable`. One that is not there is [`io::ErrorKind::NotFound`]; where
    /// the whole folder is not, [`io::ErrorKind::NotConnected`].
    fn open(&self, name: &str, writable: bool) -> io::Result<Self::File>;

    /// Removes a file. Reads through it that are under way, or come later, end short.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// What was created and removed stays so when the host loses power.
    fn sync_folder(&self) -> io::Result<()>;

    /// Bytes of the file system.
    fn room(&self) -> io::Result<Room>;

    /// The lock of that name, none while another has it.
    fn lock(&self, name: &str) -> io::Result<Option<Self::Lock>>;
}

/// One file of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Its length, bytes.
    pub bytes: u64,
    /// Those of them that the file system has set aside.
    pub taken: u64,
}

/// Bytes of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Those that may still be set aside.
    pub free: u64,
    /// All.
    pub total: u64,
    /// Bytes up to the limit of all tiers that share it, negative beyond it; none without such a limit.
    pub left: Option<i64>,
}

/// Operations that are under way, of one thread. They end in any order. One that is dropped gives its operations up:
/// they go on until they end, with their slots.
pub trait Queue: Send + Debug {
    /// What the operations are on.
    type File;

    /// Whether one more may be begun.
    fn has_room(&self) -> bool;

    /// Begins an operation; its end is told under the tag. Only while [`Queue::has_room`].
    fn submit(&mut self, tag: u64, operation: Operation<Self::File>);

    /// The end of one, waited for so long at most.
    fn next(&mut self, wait: Duration) -> Option<Completion>;
}

/// Something to be done with a file. Offsets and lengths are whole blocks.
#[derive(Debug)]
pub enum Operation<F> {
    /// Reads into the slot's first `len` bytes.
    Read {
        /// From what.
        file: F,
        /// From which byte on.
        offset: u64,
        /// Into what.
        slot: Slot,
        /// How many bytes.
        len: usize,
    },
    /// Writes the slot's first `len` bytes.
    Write {
        /// To what.
        file: F,
        /// From which byte on.
        offset: u64,
        /// From what.
        slot: Slot,
        /// How many bytes.
        len: usize,
    },
    /// What was written to the file and has ended is there after a loss of power, too.
    Sync {
        /// Of what.
        file: F,
    },
}

/// The end of an operation.
#[derive(Debug)]
pub struct Completion {
    /// As it was submitted.
    pub tag: u64,
    /// Bytes that were moved: fewer than asked for at the end of a file.
    pub result: io::Result<usize>,
    /// The operation's slot.
    pub slot: Option<Slot>,
}
