//! A revision counter: a word that one process changes and others of its host watch.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::error::MemoryError;
use crate::file::mapped_file::MappedFile;
use crate::file::mapped_file::PAGE;
use crate::file::memfd;

/// Where the note stands.
const NOTE: usize = 8;

/// The revision pages of this process.
static BOARDS: Mutex<Vec<Weak<MappedFile>>> = Mutex::new(Vec::new());

/// Counts all of them up: memory that some of them may tell of is not there any more.
pub(crate) fn advance_all() {
    for page in BOARDS.lock().iter().filter_map(Weak::upgrade) {
        word(&page, 0).fetch_add(1, Ordering::SeqCst);
    }
}

/// Held by tests that know what a revision page says, or free memory that others have: in one process they meet.
#[cfg(test)]
pub(crate) static ALONE: Mutex<()> = Mutex::new(());

/// The owner's side: a sealed memfd of one page with a counter at its start and a note behind it. No other process can
/// write it: what the counter says is proof for its watchers.
#[derive(Debug)]
pub struct RevisionPage {
    fd: OwnedFd,
    page: Arc<MappedFile>,
}

impl RevisionPage {
    /// A revision page that says 0.
    pub fn new() -> Result<RevisionPage, MemoryError> {
        let (fd, page) = memfd::create_for_readers("kv-board", PAGE)?;
        let page = Arc::new(page);
        let mut boards = BOARDS.lock();
        boards.retain(|board| board.strong_count() > 0);
        boards.push(Arc::downgrade(&page));
        Ok(RevisionPage { fd, page })
    }

    /// Counts one up. A watcher that looks from now on sees that, before anything that this thread does afterwards.
    pub fn advance(&self) {
        word(&self.page, 0).fetch_add(1, Ordering::SeqCst);
    }

    /// A hint for watchers, in no order with anything.
    pub fn set_note(&self, note: u64) {
        word(&self.page, NOTE).store(note, Ordering::Relaxed);
    }

    /// What it says.
    pub fn get(&self) -> u64 {
        word(&self.page, 0).load(Ordering::SeqCst)
    }

    /// The descriptor to give to a watcher.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A watcher's side.
#[derive(Debug)]
pub struct RevisionPageView {
    page: MappedFile,
}

impl RevisionPageView {
    /// Maps a revision page that another process has sent, read-only. Refuses what its owner could still shorten.
    pub fn map(fd: &OwnedFd) -> Result<RevisionPageView, MemoryError> {
        memfd::check(fd.as_fd(), "board", PAGE)?;
        Ok(RevisionPageView { page: MappedFile::new(fd.as_fd(), PAGE, false)? })
    }

    /// What it says. What was read of the owner's memory before this look was read before it.
    pub fn get(&self) -> u64 {
        std::sync::atomic::fence(Ordering::SeqCst);
        word(&self.page, 0).load(Ordering::SeqCst)
    }

    /// The owner's hint.
    pub fn note(&self) -> u64 {
        word(&self.page, NOTE).load(Ordering::Relaxed)
    }
}

fn word(page: &MappedFile, at: usize) -> &AtomicU64 {
    // SAFETY: an aligned word of a page that stays mapped as long as the borrow; all processes use it as an atomic, and
    // a read-only mapping is only loaded from.
    unsafe { AtomicU64::from_ptr(page.base().add(at).cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watcher_sees_each_step_and_refuses_other_files() {
        let _alone = ALONE.lock();
        let board = RevisionPage::new().unwrap();
        let view = RevisionPageView::map(&board.fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!((board.get(), view.get()), (0, 0));
        board.advance();
        assert_eq!((board.get(), view.get()), (1, 1));
        board.set_note(7);
        assert_eq!((view.note(), view.get()), (7, 1));
        let other = OwnedFd::from(std::fs::File::open("/dev/zero").unwrap());
        assert!(matches!(RevisionPageView::map(&other), Err(MemoryError::NotSealed { .. })));
    }

    #[test]
    fn nobody_but_its_owner_changes_a_board() {
        let _alone = ALONE.lock();
        let board = RevisionPage::new().unwrap();
        board.advance();
        let given = board.fd().try_clone_to_owned().unwrap();
        assert!(MappedFile::new(given.as_fd(), PAGE, true).is_err(), "a mapping to write by");
        assert_eq!(rustix::io::pwrite(&given, &[0; 8], 0), Err(rustix::io::Errno::PERM));
        assert!(memfd::punch(given.as_fd(), 0, PAGE).is_err());
        assert_eq!(rustix::fs::fcntl_add_seals(&given, rustix::fs::SealFlags::WRITE), Err(rustix::io::Errno::PERM));
        // By its file, another one is opened.
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&given));
        let reopened = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        assert!(MappedFile::new(reopened.as_fd(), PAGE, true).is_err());
        let view = RevisionPageView::map(&given).unwrap();
        board.advance();
        assert_eq!((board.get(), view.get()), (2, 2));
    }
}
