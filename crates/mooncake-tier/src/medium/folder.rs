//! A folder of a real file system.

use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mooncake_os::Guarded;
use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags, fallocate, fcntl_getfl, flock, open, statvfs};
use rustix::io::Errno;

use super::ring::Ring;
use super::shared_limit::{COUNTED, SharedLimit};
use super::threads::Threads;
use super::{Completion, Files, Listed, Medium, Operation, Queue, Room};
use crate::address::{BLOCK, FileNumber};
use crate::slots::Slots;

/// How long a disk has to show that io_uring works.
const TRIAL_LIMIT: Duration = Duration::from_secs(10);

/// Behind a name in a file: the end of its line, in whatever way.
const SPARE_BYTES: u64 = 8;

/// What carries operations out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// io_uring.
    Ring,
    /// Threads that wait for the disk.
    Threads,
}

/// A folder of a file system.
#[derive(Debug, Clone)]
pub struct Folder {
    path: PathBuf,
    engine: Engine,
    limit: Option<SharedLimit>,
    /// Where other hosts may have mounted its file system, too.
    shared: Option<NameFile>,
    /// Device and number of what the path led to.
    identity: (u64, u64),
}

/// A file that says which file system is mounted above it, where hosts share one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameFile {
    /// Where it is.
    pub path: PathBuf,
    /// What it says, one line.
    pub name: String,
}

impl NameFile {
    /// Whether the file system is that one, and not what lies below its mount point, say.
    pub fn is_here(&self) -> bool {
        let most = self.name.len() as u64 + SPARE_BYTES;
        read_short(&self.path, most).is_ok_and(|name| name.trim_end() == self.name)
    }
}

/// What a file says that has a few bytes. An error for any that has more than so many, and for what is none, which is
/// not waited for.
pub fn read_short(path: &Path, bytes_max: u64) -> io::Result<String> {
    let opened = open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    let file = File::from(opened);
    let about = file.metadata()?;
    if !about.is_file() || about.len() > bytes_max {
        let why = format!("{} is no file of {bytes_max} bytes at most", path.display());
        return Err(io::Error::new(ErrorKind::InvalidData, why));
    }
    let mut text = String::new();
    file.take(bytes_max).read_to_string(&mut text)?;
    Ok(text)
}

impl Folder {
    /// The folder of that path, made with access for its user alone if it is not there; its parents are. Without an
    /// engine, operations go by io_uring where a write and a read of it in the folder succeed, by threads otherwise.
    /// Where io_uring is asked for and these fail, the folder is of no use.
    pub fn new(path: impl Into<PathBuf>, engine: Option<Engine>) -> io::Result<Folder> {
        if engine == Some(Engine::Threads) {
            return Folder::with_engine(path, Engine::Threads);
        }
        let folder = Folder::with_engine(path, Engine::Ring)?;
        Ok(match folder.tries_out_well() {
            Ok(()) => folder,
            Err(error) if engine.is_some() => {
                let why = format!("io_uring, which is asked for, does not work in this folder: {error}");
                return Err(io::Error::new(error.kind(), why));
            }
            Err(error) => {
                let path = folder.path.display();
                tracing::debug!(%error, %path, "no io_uring for this folder: threads do its work");
                Folder { engine: Engine::Threads, ..folder }
            }
        })
    }

    /// The same with a given engine.
    pub fn with_engine(path: impl Into<PathBuf>, engine: Engine) -> io::Result<Folder> {
        let path = path.into();
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => Folder::to_look_at(path).map(|folder| Folder { engine, ..folder }),
        }
    }

    /// The folder of that path, which is there and is tried out for nothing: threads do its work.
    pub fn to_look_at(path: impl Into<PathBuf>) -> io::Result<Folder> {
        let path = path.into();
        let about = std::fs::symlink_metadata(&path)?;
        let is_own = about.is_dir() && about.uid() == rustix::process::geteuid().as_raw();
        if !is_own || about.mode() & 0o022 != 0 {
            let path = path.display();
            let why = format!("{path} is another user's, a link, or may be written by others: it is not used");
            return Err(io::Error::new(ErrorKind::PermissionDenied, why));
        }
        let identity = (about.dev(), about.ino());
        Ok(Folder { path, engine: Engine::Threads, limit: None, shared: None, identity })
    }

    /// Whether its path leads to it still: it was not removed or moved, and its file system is mounted. Of one that
    /// hosts share, whether that file system is.
    pub fn is_there(&self) -> bool {
        if let Some(name_file) = &self.shared {
            return name_file.is_here();
        }
        match std::fs::symlink_metadata(&self.path) {
            Ok(about) => (about.dev(), about.ino()) == self.identity,
            // A disk that does not say is one that fails.
            Err(error) => !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
        }
    }

    /// The same, under a limit that it shares with others.
    pub fn limited(self, limit: Option<SharedLimit>) -> Folder {
        Folder { limit, ..self }
    }

    /// The same, on a file system of that name, if it has one: other hosts may have it mounted, and it may know no
    /// locks.
    pub fn shared(self, shared: Option<NameFile>) -> Folder {
        Folder { shared, ..self }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What carries operations out.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    fn tries_out_well(&self) -> io::Result<()> {
        let mut ring = Ring::new(1)?;
        // Without a name: whoever has the folder sees nothing of it.
        let file = Arc::new(self.open_direct(".", OFlags::TMPFILE | OFlags::RDWR)?);
        let slots = Slots::new(1);
        for is_write in [true, false] {
            let mut slot = slots.take().ok_or(ErrorKind::OutOfMemory)?;
            let (file, len) = (file.clone(), BLOCK as usize);
            ring.submit(
                0,
                match is_write {
                    true => {
                        slot[..len].fill(7);
                        Operation::Write { file, offset: 0, slot, len }
                    }
                    false => Operation::Read { file, offset: 0, slot, len },
                },
            );
            let end = ring.next(TRIAL_LIMIT).ok_or(ErrorKind::TimedOut)?;
            if end.result? != len || end.slot.is_none_or(|slot| slot[..len] != [7; BLOCK as usize]) {
                return Err(ErrorKind::InvalidData.into());
            }
        }
        Ok(())
    }

    /// Where the folder is not there, whatever it has is where that is.
    fn why_missing(&self, error: io::Error) -> io::Error {
        if error.kind() != ErrorKind::NotFound || self.is_there() {
            return error;
        }
        let why = format!("{} is not there: was it moved, or its file system unmounted?", self.path.display());
        io::Error::new(ErrorKind::NotConnected, why)
    }

    /// Opened past the page cache, where the file system lets it.
    fn open_direct(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let path = self.path.join(name);
        is_file_if_any(&path)?;
        let attempt = |more| open(&path, flags | more | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
        match attempt(OFlags::DIRECT) {
            Err(Errno::INVAL) => Ok(attempt(OFlags::empty())?.into()),
            opened => Ok(opened?.into()),
        }
    }
}

/// Whoever opens a pipe that lies in place of a file waits for its other end.
fn is_file_if_any(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(about) if !about.is_file() && !about.is_dir() && !about.is_symlink() => {
            Err(io::Error::new(ErrorKind::InvalidData, format!("{} is no file", path.display())))
        }
        // Whatever else is wrong is said as it is opened.
        _ => Ok(()),
    }
}

impl Files for Folder {
    type File = Arc<File>;
    type Queue = FolderQueue;

    fn open_file(&self, number: FileNumber) -> io::Result<Arc<File>> {
        self.open(&number.name(), false)
    }

    fn queue(&self, depth: usize) -> io::Result<FolderQueue> {
        FolderQueue::new(self.engine, depth)
    }
}

impl Medium for Folder {
    /// Closed in forked children, which are no owner (`docs/safety.md`, rule T1).
    type Lock = Guarded<File>;

    fn list(&self) -> io::Result<Vec<Listed>> {
        let mut found = Vec::new();
        for entry in self.path.read_dir()? {
            let entry = entry?;
            let (Ok(name), Ok(about)) = (entry.file_name().into_string(), entry.metadata()) else { continue };
            if about.is_file() {
                found.push(Listed { name, bytes: about.len(), taken: about.blocks() * COUNTED });
            }
        }
        Ok(found)
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<File>> {
        let file = self.open_direct(name, OFlags::CREATE | OFlags::EXCL | OFlags::RDWR)?;
        let set_aside = match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            // As NFS before 4.2 and some others: there a write may find no room.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) if self.shared.is_some() => file.set_len(bytes),
            done => done.map_err(io::Error::from),
        };
        if let Err(error) = set_aside {
            // A file that is not there whole is not there.
            let _ = self.remove(name);
            return Err(error);
        }
        Ok(Arc::new(file))
    }

    fn is_direct(&self, file: &Arc<File>) -> bool {
        self.shared.is_none() || fcntl_getfl(file).is_ok_and(|flags| flags.contains(OFlags::DIRECT))
    }

    fn open(&self, name: &str, writable: bool) -> io::Result<Arc<File>> {
        let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
        self.open_direct(name, access).map(Arc::new).map_err(|error| self.why_missing(error))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let path = self.path.join(name);
        is_file_if_any(&path)?;
        let opened = open(&path, OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        let file: File = opened.map_err(|error| self.why_missing(error.into()))?.into();
        std::fs::remove_file(&path)?;
        file.set_len(0)
    }

    fn sync_folder(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    fn room(&self) -> io::Result<Room> {
        let about = statvfs(&self.path)?;
        let left = self.limit.as_ref().map(SharedLimit::left).transpose()?;
        Ok(Room { free: about.f_bavail * about.f_frsize, total: about.f_blocks * about.f_frsize, left })
    }

    fn lock(&self, name: &str) -> io::Result<Option<Guarded<File>>> {
        let path = self.path.join(name);
        is_file_if_any(&path)?;
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = Guarded::new(File::from(open(path, flags, Mode::RUSR | Mode::WUSR)?));
        match flock(&*file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            // Then its UUID, new for each process, is all that says whose it is.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK) if self.shared.is_some() => Ok(Some(file)),
            Err(error) => Err(error.into()),
        }
    }
}

/// Operations on a folder's files.
#[derive(Debug)]
pub enum FolderQueue {
    /// By io_uring.
    Ring(Box<Ring>),
    /// By threads.
    Threads(Threads),
}

impl FolderQueue {
    /// For that many operations at a time.
    pub fn new(engine: Engine, depth: usize) -> io::Result<FolderQueue> {
        match engine {
            Engine::Ring => Ok(FolderQueue::Ring(Box::new(Ring::new(depth)?))),
            Engine::Threads => Ok(FolderQueue::Threads(Threads::new(depth))),
        }
    }
}

impl Queue for FolderQueue {
    type File = Arc<File>;

    fn has_room(&self) -> bool {
        match self {
            FolderQueue::Ring(ring) => ring.has_room(),
            FolderQueue::Threads(threads) => threads.has_room(),
        }
    }

    fn submit(&mut self, tag: u64, operation: Operation<Arc<File>>) {
        match self {
            FolderQueue::Ring(ring) => ring.submit(tag, operation),
            FolderQueue::Threads(threads) => threads.submit(tag, operation),
        }
    }

    fn next(&mut self, wait: Duration) -> Option<Completion> {
        match self {
            FolderQueue::Ring(ring) => ring.next(wait),
            FolderQueue::Threads(threads) => threads.next(wait),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The folder, with each engine that can be had here.
    fn each_engine(test: impl Fn(Folder)) {
        for engine in [Engine::Threads, Engine::Ring] {
            let place = tempfile::tempdir().unwrap();
            let folder = Folder::new(place.path().join("tier"), None).unwrap();
            if engine == Engine::Ring && folder.engine() != engine {
                return eprintln!("skipped: no io_uring here");
            }
            assert_eq!(folder.list().unwrap(), [], "nothing of the trial is left");
            test(Folder::with_engine(place.path().join("tier"), engine).unwrap());
        }
    }

    fn end(queue: &mut FolderQueue) -> Completion {
        queue.next(Duration::from_secs(20)).expect("an operation ends")
    }

    #[test]
    fn what_is_no_file_holds_nobody_up_and_a_hole_takes_no_room() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::with_engine(place.path().join("tier"), Engine::Threads).unwrap();
        let pipe = folder.path().join("super");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let errors = [
            folder.open("super", false).map(drop),
            folder.open("super", true).map(drop),
            folder.lock("super").map(drop),
            folder.remove("super"),
            read_short(&pipe, 9).map(drop),
        ];
        assert!(errors.into_iter().all(|error| error.unwrap_err().kind() == ErrorKind::InvalidData));
        assert_eq!(folder.list().unwrap(), []);
        folder.create("one", 1 << 20).unwrap();
        File::options().write(true).open(folder.path().join("one")).unwrap().set_len(1 << 40).unwrap();
        let listed = folder.list().unwrap();
        assert_eq!(listed, [Listed { name: "one".to_owned(), bytes: 1 << 40, taken: 1 << 20 }]);
        assert!(read_short(&folder.path().join("one"), 9).is_err());
    }

    #[test]
    fn what_was_written_is_read_and_a_removed_file_ends_short() {
        each_engine(written_and_read);
    }

    #[allow(clippy::needless_pass_by_value, reason = "as the others")]
    fn written_and_read(folder: Folder) {
        let slots = Slots::new(4);
        let file = folder.create("one", 1 << 20).unwrap();
        assert_eq!(folder.create("one", 1).unwrap_err().kind(), ErrorKind::AlreadyExists);
        let listed = Listed { name: "one".to_owned(), bytes: 1 << 20, taken: 1 << 20 };
        assert_eq!(folder.list().unwrap(), [listed]);
        let mut queue = folder.queue(3).unwrap();
        for (tag, byte) in [(0, 7), (1, 8), (2, 9)] {
            let mut slot = slots.take().unwrap();
            slot[..8192].fill(byte);
            queue.submit(tag, Operation::Write { file: file.clone(), offset: tag * 8192, slot, len: 8192 });
        }
        assert!(!queue.has_room());
        let mut tags: Vec<u64> = (0..3).map(|_| end(&mut queue)).map(|end| (end.result.unwrap(), end.tag).1).collect();
        tags.sort_unstable();
        assert_eq!((tags, slots.free()), (vec![0, 1, 2], 4));
        queue.submit(3, Operation::Sync { file: file.clone() });
        end(&mut queue).result.unwrap();
        let opened = folder.open("one", false).unwrap();
        let read = |queue: &mut FolderQueue| {
            let slot = slots.take().unwrap();
            queue.submit(4, Operation::Read { file: opened.clone(), offset: 8192, slot, len: 16_384 });
            let end = end(queue);
            (end.result.unwrap(), end.slot.unwrap())
        };
        let (moved, slot) = read(&mut queue);
        assert_eq!(moved, 16_384);
        assert!(slot[..8192].iter().all(|byte| *byte == 8) && slot[8192..16_384].iter().all(|byte| *byte == 9));
        drop(slot);
        folder.remove("one").unwrap();
        folder.sync_folder().unwrap();
        assert_eq!(read(&mut queue).0, 0);
        assert!(queue.next(Duration::ZERO).is_none());
    }

    #[test]
    fn a_lock_is_had_by_one_at_a_time() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::new(place.path(), None).unwrap();
        let lock = folder.lock("lock").unwrap();
        assert!(lock.is_some() && folder.lock("lock").unwrap().is_none());
        drop(lock);
        assert!(folder.lock("lock").unwrap().is_some());
        assert!(folder.room().unwrap().total > 0);
    }

    #[test]
    fn a_queue_that_is_dropped_gives_its_slots_back() {
        each_engine(dropped_amid_writes);
    }

    #[allow(clippy::needless_pass_by_value, reason = "as the others")]
    fn dropped_amid_writes(folder: Folder) {
        let slots = Slots::new(8);
        let file = folder.create("one", 16 << 20).unwrap();
        let mut queue = folder.queue(8).unwrap();
        for tag in 0..8 {
            let slot = slots.take().unwrap();
            queue.submit(tag, Operation::Write { file: file.clone(), offset: tag << 20, slot, len: 1 << 20 });
        }
        drop(queue);
        let end = std::time::Instant::now() + Duration::from_secs(20);
        while slots.free() < 8 {
            assert!(std::time::Instant::now() < end, "{} slots are free", slots.free());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
