//! Steps at which a power loss, a kill or a full disk may find the files of a log.

use std::fs::File;
use std::io;
use std::path::Path;

/// What happens to the files of a log, one after the other: tests watch it, and let the process or the disk fail there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A file is there, without its header.
    Created,
    /// The header is on the disk.
    HeaderSynced,
    /// The file has its name.
    Named,
    /// The entries of the folder are on the disk.
    FolderSynced,
    /// What was appended to a file is on the disk.
    Synced,
    /// A slice of a snapshot is written.
    Slice,
    /// A snapshot is whole, on the disk.
    SnapshotSynced,
    /// It has its name there too.
    Snapshot,
    /// A file that a snapshot covers is gone.
    Removed,
}

/// Says that a step was made.
#[cfg(not(test))]
#[inline]
pub fn step(_: Step, _: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
pub use watch::step;

/// Has a file, or the entries of a folder, on the disk, which is a step.
pub fn sync(synced: Step, file: &File, path: &Path) -> io::Result<()> {
    file.sync_all()?;
    step(synced, path)
}

#[cfg(test)]
pub mod watch {
    //! Steps as tests see them, of their own thread.

    use std::cell::RefCell;
    use std::io;
    use std::path::Path;

    use super::Step;

    type Watcher = Box<dyn FnMut(Step, &Path) -> io::Result<()>>;

    thread_local!(static WATCHER: RefCell<Option<Watcher>> = const { RefCell::new(None) });

    /// Calls this at each step from now on.
    pub fn with(watcher: impl FnMut(Step, &Path) -> io::Result<()> + 'static) {
        WATCHER.set(Some(Box::new(watcher)));
    }

    /// Says that a step was made; an error is the step's.
    pub fn step(step: Step, path: &Path) -> io::Result<()> {
        WATCHER.with_borrow_mut(|watcher| watcher.as_mut().map_or(Ok(()), |watcher| watcher(step, path)))
    }

    #[test]
    fn what_cannot_be_synced_is_no_step() {
        with(|step, _| panic!("{step:?}"));
        let nothing = Path::new("/dev/null");
        let file = std::fs::File::options().write(true).open(nothing).unwrap();
        assert_eq!(super::sync(Step::Synced, &file, nothing).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
