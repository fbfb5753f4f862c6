//! Operations of a folder's files by io_uring: no thread waits for the disk.
//!
//! `unsafe` is here alone: the kernel writes into slots behind the compiler's back. A slot is therefore kept here from
//! the submission of its operation to its end, whatever becomes of the queue.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};

use super::{Completion, Operation, Queue};
use crate::slots::Slot;

/// Between two looks at operations that a dropped ring has left.
const REAP_EVERY: Duration = Duration::from_millis(100);

/// Operations of one thread.
pub struct Ring {
    depth: usize,
    /// None once what is under way was handed on.
    kernel: Option<Kernel>,
}

struct Kernel {
    ring: IoUring,
    next: u64,
    under_way: BTreeMap<u64, UnderWay>,
}

/// An operation that the kernel has. Its slot and its file stay until it has ended.
struct UnderWay {
    tag: u64,
    file: Arc<File>,
    kind: Kind,
    done: usize,
}

enum Kind {
    Read { offset: u64, slot: Slot, len: usize },
    Write { offset: u64, slot: Slot, len: usize },
    Sync,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("depth", &self.depth).finish_non_exhaustive()
    }
}

impl Ring {
    /// For that many operations at a time. An error where the kernel has no io_uring, or does not let this process.
    pub fn new(depth: usize) -> io::Result<Ring> {
        let entries =
            u32::try_from(depth).ok().and_then(u32::checked_next_power_of_two).ok_or(ErrorKind::InvalidInput)?;
        let ring = IoUring::new(entries)?;
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            // Before Linux 5.11 a wait has no deadline.
            return Err(ErrorKind::Unsupported.into());
        }
        Ok(Ring { depth, kernel: Some(Kernel { ring, next: 0, under_way: BTreeMap::new() }) })
    }

    fn kernel(&mut self) -> &mut Kernel {
        self.kernel.as_mut().expect("it is taken at the drop only")
    }
}

impl Queue for Ring {
    type File = Arc<File>;

    fn has_room(&self) -> bool {
        self.kernel.as_ref().is_some_and(|kernel| kernel.under_way.len() < self.depth)
    }

    fn submit(&mut self, tag: u64, operation: Operation<Arc<File>>) {
        debug_assert!(self.has_room());
        let (file, kind) = match operation {
            Operation::Read { file, offset, slot, len } => (file, Kind::Read { offset, slot, len }),
            Operation::Write { file, offset, slot, len } => (file, Kind::Write { offset, slot, len }),
            Operation::Sync { file } => (file, Kind::Sync),
        };
        let kernel = self.kernel();
        let id = kernel.next;
        kernel.next += 1;
        kernel.under_way.insert(id, UnderWay { tag, file, kind, done: 0 });
        kernel.push(id);
    }

    fn next(&mut self, wait: Duration) -> Option<Completion> {
        let kernel = self.kernel();
        let began = Instant::now();
        loop {
            while let Some((id, result)) = kernel.next_end() {
                if let Some(completion) = kernel.ended(id, result) {
                    return Some(completion);
                }
            }
            if kernel.under_way.is_empty() || wait.is_zero() {
                return None;
            }
            let left = wait.saturating_sub(began.elapsed());
            if left.is_zero() {
                return None;
            }
            kernel.wait(left);
        }
    }
}

impl Kernel {
    /// Hands the rest of an operation to the kernel, which takes it with the next wait.
    fn push(&mut self, id: u64) {
        let under_way = self.under_way.get_mut(&id).expect("an operation of this ring");
        let entry = under_way.entry().user_data(id);
        loop {
            // SAFETY: the entry's file and slot are in `under_way`, where they stay until the kernel says that the
            // operation has ended; the slot's pages do not move with it. Nothing else touches the slot meanwhile.
            match unsafe { self.ring.submission().push(&entry) } {
                Ok(()) => break,
                // As many are queued as there is room for: the kernel takes them.
                Err(_) => _ = self.ring.submit(),
            }
        }
        // What fails here is tried again by the wait.
        let _ = self.ring.submit();
    }

    fn next_end(&mut self) -> Option<(u64, i32)> {
        let end = self.ring.completion().next()?;
        Some((end.user_data(), end.result()))
    }

    /// Waits for an end, so long at most.
    fn wait(&mut self, time: Duration) {
        let time = Timespec::new().sec(time.as_secs()).nsec(time.subsec_nanos());
        // Whether it was the time that ended it, or a signal, is seen by what has ended.
        let _ = self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time));
    }

    /// None if the operation goes on, with the rest of its bytes.
    fn ended(&mut self, id: u64, result: i32) -> Option<Completion> {
        let under_way = self.under_way.get_mut(&id).expect("an operation of this ring");
        let goes_on = match result {
            moved if moved >= 0 => {
                under_way.done += moved as usize;
                moved > 0 && under_way.done < under_way.len()
            }
            error => [-libc::EINTR, -libc::EAGAIN].contains(&error),
        };
        if goes_on {
            self.push(id);
            return None;
        }
        let UnderWay { tag, kind, done, .. } = self.under_way.remove(&id).expect("looked at above");
        let result = if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(done) };
        let slot = match kind {
            Kind::Read { slot, .. } | Kind::Write { slot, .. } => Some(slot),
            Kind::Sync => None,
        };
        Some(Completion { tag, result, slot })
    }
}

impl UnderWay {
    fn len(&self) -> usize {
        match &self.kind {
            Kind::Read { len, .. } | Kind::Write { len, .. } => *len,
            Kind::Sync => 0,
        }
    }

    /// What is left of it.
    fn entry(&mut self) -> squeue::Entry {
        let (fd, done) = (Fd(self.file.as_raw_fd()), self.done);
        match &mut self.kind {
            Kind::Read { offset, slot, len } => {
                let into = slot.as_mut_ptr().wrapping_add(done);
                opcode::Read::new(fd, into, (*len - done) as u32).offset(*offset + done as u64).build()
            }
            Kind::Write { offset, slot, len } => {
                let from = slot.as_ptr().wrapping_add(done);
                opcode::Write::new(fd, from, (*len - done) as u32).offset(*offset + done as u64).build()
            }
            Kind::Sync => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let Some(kernel) = self.kernel.take().filter(|kernel| !kernel.under_way.is_empty()) else { return };
        let (give, take) = std::sync::mpsc::channel();
        let reaper = std::thread::Builder::new().name("tier-reaper".to_owned()).spawn(move || {
            if let Ok(kernel) = take.recv() {
                reap(kernel);
            }
        });
        let left = give.send(kernel);
        if reaper.is_err() {
            // The kernel may write to these slots for as long as this process lives: no one else ever gets them.
            std::mem::forget(left);
        }
    }
}

/// Keeps slots until the kernel is through with them.
fn reap(mut kernel: Kernel) {
    while !kernel.under_way.is_empty() {
        kernel.wait(REAP_EVERY);
        while let Some((id, result)) = kernel.next_end() {
            kernel.ended(id, result);
        }
    }
}
