//! A hazard pointer across processes: the way of one process into memory that another one lends it.
//!
//! The lender makes a page for each process that maps its memory. There the mapper counts its steps in and out, and the
//! lender closes the way.
//!
//! - A lender that gives memory up changes its [revision page](crate::RevisionPage) first and looks at the counter
//!   then.
//! - A mapper counts first and looks at the revision page then.
//!
//! All four are sequentially consistent, so that at least one side sees the other: either the mapper turns round, or
//! the lender knows that the mapper is inside. The mapper also says in which block it is: a lender that gives up
//! another block does not wait for it.
//!
//! The lender also copies out of the mapper's memory, at the mapper's word. The mapper takes its word back in the same
//! way. The lender counts a copy first, and looks then whether it is still wanted. The mapper first says that it is
//! not, and looks at the counter then.
//!
//! Both sides write the page, so it is for one mapper: a process of the same user that has proven its identity. A
//! mapper that writes what does not belong there deceives itself, or makes the lender wait for it as if it were inside.
//! No other process looks there. While the lender is awake, the mapper's requests go through the same page
//! (`hatch.rs`).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::MemoryError;
use crate::file::mapped_file::MappedFile;
use crate::file::mapped_file::PAGE;
use crate::file::memfd;
use crate::shared::revision_page::RevisionPageView;

/// Steps of the mapper: odd while it is inside.
const STEPS: usize = 0;

/// The number of the block that the mapper is inside of, written before it counts its step in. 0, of mappers that do
/// not say it: any.
const BLOCK: usize = 8;

/// Not 0: the mapper has taken back what it asked for.
const WITHDRAWN: usize = 16;

/// Not 0: the mapper may not enter any more. In another cache line, because the lender writes it.
const CLOSED: usize = 64;

/// Copies out of the mapper's memory: odd while the lender is at one.
const COPIES: usize = 72;

/// The lender's side.
#[derive(Debug)]
pub struct AccessPage {
    page: MappedFile,
}

impl AccessPage {
    /// An open page, with no mapper inside, and the descriptor to give to the mapper.
    pub fn new() -> Result<(AccessPage, OwnedFd), MemoryError> {
        let fd = memfd::create("kv-passage", PAGE, false)?;
        let page = MappedFile::new(fd.as_fd(), PAGE, true)?;
        Ok((AccessPage { page }, fd))
    }

    /// Begins a copy out of the mapper's memory; none if that is not wanted any more. One thread does so at a time.
    pub fn copy(&self) -> Option<CopyGuard<'_>> {
        word(&self.page, COPIES).fetch_add(1, Ordering::SeqCst);
        let copying = CopyGuard { page: &self.page };
        copying.is_wanted().then_some(copying)
    }

    /// A mapper that is inside stays there. It does not enter again, and asks no more.
    pub fn close(&self) {
        word(&self.page, CLOSED).store(1, Ordering::SeqCst);
        // A mapper that has asked finds that the connection has ended.
        let _ = self.look_away();
    }

    /// The words of [`hatch`](crate::shared::hatch).
    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        word(&self.page, at)
    }

    /// The access under way, if there is one. As long as its number is the same, the mapper may touch the block that it
    /// entered for.
    pub fn visit(&self) -> Option<OngoingAccess> {
        let number = word(&self.page, STEPS).load(Ordering::SeqCst);
        // That of a later access, if this one has ended meanwhile: that mapper has seen the revision page as it is now.
        let block = word(&self.page, BLOCK).load(Ordering::SeqCst);
        (number % 2 == 1).then_some(OngoingAccess { number, block })
    }
}

/// An access, as the lender sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OngoingAccess {
    /// Another one for each access.
    pub number: u64,
    /// Where the mapper is; 0 if it did not say.
    pub block: u64,
}

impl OngoingAccess {
    /// Whether the mapper may be in that block.
    pub fn touches(&self, block: u64) -> bool {
        self.block == block || self.block == 0
    }
}

/// The mapper's side. One thread uses it at a time.
#[derive(Debug)]
pub struct AccessPageView {
    page: MappedFile,
}

impl AccessPageView {
    /// Maps an access page that the lender has sent. Refuses what its owner could still shorten.
    pub fn map(fd: &OwnedFd) -> Result<AccessPageView, MemoryError> {
        memfd::check(fd.as_fd(), "access page", PAGE)?;
        Ok(AccessPageView { page: MappedFile::new(fd.as_fd(), PAGE, true)? })
    }

    /// Goes into a block, if the way is open and the revision page still says `known`. While the answer lives, the
    /// block is as it was when the revision page said so.
    pub fn enter(&mut self, board: &RevisionPageView, known: u64, block: u64) -> Option<AccessGuard<'_>> {
        word(&self.page, BLOCK).store(block, Ordering::SeqCst);
        word(&self.page, STEPS).fetch_add(1, Ordering::SeqCst);
        let visit = AccessGuard { page: &self.page };
        (self.is_open() && board.get() == known).then_some(visit)
    }

    /// What was asked for is not wanted any more: the lender begins no further copy out of this process.
    pub fn withdraw(&self) {
        word(&self.page, WITHDRAWN).store(1, Ordering::SeqCst);
    }

    /// Whether the lender is at a copy out of this process. After [`AccessPageView::withdraw`], once it is not it never
    /// is again.
    pub fn is_copying(&self) -> bool {
        word(&self.page, COPIES).load(Ordering::SeqCst) % 2 == 1
    }

    /// The words of [`hatch`](crate::shared::hatch).
    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        word(&self.page, at)
    }

    /// Whether the lender lets the mapper in. If not, it may have given all up without waiting for the mapper inside.
    pub fn is_open(&self) -> bool {
        word(&self.page, CLOSED).load(Ordering::SeqCst) == 0
    }
}

/// The mapper is inside.
#[derive(Debug)]
pub struct AccessGuard<'a> {
    page: &'a MappedFile,
}

impl Drop for AccessGuard<'_> {
    fn drop(&mut self) {
        word(self.page, STEPS).fetch_add(1, Ordering::SeqCst);
    }
}

/// The lender copies out of the mapper's memory.
#[derive(Debug)]
pub struct CopyGuard<'a> {
    page: &'a MappedFile,
}

impl CopyGuard<'_> {
    /// Whether the mapper still wants it.
    pub fn is_wanted(&self) -> bool {
        word(self.page, WITHDRAWN).load(Ordering::SeqCst) == 0
    }
}

impl Drop for CopyGuard<'_> {
    fn drop(&mut self) {
        word(self.page, COPIES).fetch_add(1, Ordering::SeqCst);
    }
}

fn word(page: &MappedFile, at: usize) -> &AtomicU64 {
    // SAFETY: an aligned word of a page that stays mapped as long as the borrow; both sides use it as an atomic.
    unsafe { AtomicU64::from_ptr(page.base().add(at).cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::revision_page::{ALONE, RevisionPage};

    #[test]
    fn a_lender_sees_who_is_inside_and_a_visitor_sees_what_changed() {
        let _alone = ALONE.lock();
        let board = RevisionPage::new().unwrap();
        let seen = RevisionPageView::map(&board.fd().try_clone_to_owned().unwrap()).unwrap();
        let (page, fd) = AccessPage::new().unwrap();
        let mut view = AccessPageView::map(&fd).unwrap();
        assert_eq!(page.visit(), None);

        let visit = view.enter(&seen, 0, 7).unwrap();
        let first = page.visit().unwrap();
        assert_eq!(first.block, 7);
        drop(visit);
        assert_eq!(page.visit(), None);

        let visit = view.enter(&seen, 0, 9).unwrap();
        let second = page.visit().unwrap();
        assert!(second.number != first.number && second.block == 9, "another visit");
        assert!(second.touches(9) && !second.touches(7));
        drop(visit);

        board.advance();
        assert!(view.enter(&seen, 0, 7).is_none() && page.visit().is_none(), "what it knew is no more");
        let visit = view.enter(&seen, 1, 8);
        assert!(visit.is_some() && page.visit().unwrap().touches(8));
        page.close();
        assert!(page.visit().is_some(), "whoever is inside stays there");
        drop(visit);
        assert!(!view.is_open(), "whoever was inside finds out");
        assert!(view.enter(&seen, 1, 8).is_none() && page.visit().is_none());
    }

    #[test]
    fn a_lender_and_a_visitor_at_once_never_both_go_on() {
        // The lender gives its memory up and waits for the access that it sees; a mapper that entered meanwhile must
        // have turned round. What it would have done to the memory is done to `touched`.
        for _ in 0..2_000 {
            let board = RevisionPage::new().unwrap();
            let seen = RevisionPageView::map(&board.fd().try_clone_to_owned().unwrap()).unwrap();
            let (page, fd) = AccessPage::new().unwrap();
            let mut view = AccessPageView::map(&fd).unwrap();
            let touched = AtomicU64::new(0);
            std::thread::scope(|scope| {
                let touched = &touched;
                let visitor = scope.spawn(move || {
                    while let Some(_visit) = view.enter(&seen, 0, 7) {
                        touched.fetch_add(1, Ordering::Relaxed);
                    }
                });
                board.advance();
                if let Some(visit) = page.visit() {
                    while page.visit() == Some(visit) {
                        std::hint::spin_loop();
                    }
                }
                let after = touched.load(Ordering::Relaxed);
                visitor.join().unwrap();
                assert_eq!(touched.load(Ordering::Relaxed), after, "touched after it was given up");
            });
        }
    }

    #[test]
    fn a_lender_that_copies_and_a_visitor_that_takes_its_word_back_never_both_go_on() {
        for _ in 0..2_000 {
            let (page, fd) = AccessPage::new().unwrap();
            let view = AccessPageView::map(&fd).unwrap();
            let copied = AtomicU64::new(0);
            std::thread::scope(|scope| {
                let copied = &copied;
                let lender = scope.spawn(move || {
                    while let Some(_copying) = page.copy() {
                        copied.fetch_add(1, Ordering::Relaxed);
                    }
                });
                view.withdraw();
                while view.is_copying() {
                    std::hint::spin_loop();
                }
                let after = copied.load(Ordering::Relaxed);
                lender.join().unwrap();
                assert_eq!(copied.load(Ordering::Relaxed), after, "copied after it was taken back");
            });
        }
    }

    #[test]
    fn other_files_are_refused() {
        let other = OwnedFd::from(std::fs::File::open("/dev/zero").unwrap());
        assert!(matches!(AccessPageView::map(&other), Err(MemoryError::NotSealed { .. })));
    }
}
