//! Replaces old segments by a snapshot, in the background and beside the live
//! core: it replays the closed files into a core of its own.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mooncake_core::{Config, Core};

use super::segment_file::{self, FileHeader, FileKind, FrameFile, Next};
use super::step::{Step, step};
use super::writer::{Log, Rotated};
use super::{LogError, frame, snapshot};

/// After a failure, so that a full disk is not hammered.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// The background thread; stops when dropped.
#[derive(Debug)]
pub struct Compactor {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Compactor {
    /// Starts the thread. `wanted` gets a message when the log is large.
    pub fn start(
        log: Arc<Log>,
        wanted: Receiver<()>,
        config: Config,
        freed: Option<fn()>,
    ) -> std::io::Result<Compactor> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name("log-compactor".into()).spawn(move || {
            loop {
                match wanted.recv_timeout(Duration::from_millis(200)) {
                    Ok(()) => {}
                    Err(std::sync::mpsc::RecvTimeoutError::Timeout) if !stopped.load(Ordering::Relaxed) => continue,
                    Err(_) => return,
                }
                match compact(&log, &config, &stopped) {
                    Ok(()) => {}
                    Err(_) if stopped.load(Ordering::Relaxed) => return,
                    Err(error) => {
                        log.snapshots_failed.fetch_add(1, Ordering::Relaxed);
                        tracing::error!(%error, "log not compacted; it grows on and is tried again");
                        for _ in 0..RETRY_AFTER.as_millis() / 100 {
                            if stopped.load(Ordering::Relaxed) {
                                return;
                            }
                            std::thread::sleep(Duration::from_millis(100));
                        }
                    }
                }
                if let Some(freed) = freed {
                    freed();
                }
            }
        })?;
        Ok(Compactor { stop, thread: Some(thread) })
    }
}

impl Drop for Compactor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the log compactor panicked");
        }
    }
}

/// One snapshot of everything up to now; then what it covers is removed.
pub(super) fn compact(log: &Log, config: &Config, stop: &AtomicBool) -> Result<(), LogError> {
    let began = Instant::now();
    let Some(Rotated { folder, open, snapshot: header }) = log.rotate()? else { return Ok(()) };
    // Appends go on meanwhile. What says under which boot the log was written must not go before its successor is on
    // the disk: a witness of another host would vouch for what a power loss leaves.
    segment_file::make_durable(&open).map_err(LogError::io("syncing", open))?;
    let mut core = Core::new(config.clone());
    replay_closed(&folder, header.lsn, &mut core, stop)?;
    let bytes = snapshot::write(&folder, &header, core.snapshot(), stop)
        .map_err(LogError::io("writing a snapshot in", &folder))?;
    drop(core);
    remove_covered(&folder, header.lsn);
    log.compacted(bytes, began.elapsed());
    tracing::info!(lsn = header.lsn, bytes, "log compacted");
    Ok(())
}

fn replay_closed(folder: &Path, last: u64, core: &mut Core, stop: &AtomicBool) -> Result<(), LogError> {
    let list = |kind| segment_file::list(folder, kind).map_err(LogError::io("listing", folder));
    let mut at = 0;
    let mut apply = |record| {
        if stop.load(Ordering::Relaxed) {
            return Err("the master stops".to_owned());
        }
        core.replay(record).map_err(|error| error.to_string())
    };
    if let Some((_, path)) = list(FileKind::Snapshot)?.last() {
        at = snapshot::read(path, &mut apply)?.lsn;
    }
    for (first, path) in list(FileKind::Segment)? {
        if first > last {
            break;
        }
        let io = |source| LogError::Io { action: "reading", path: path.clone(), source };
        let damage = |reason: &str| LogError::Foreign { path: path.clone(), reason: reason.to_owned() };
        let (mut file, header) = FrameFile::open(&path).map_err(io)?;
        let header: FileHeader = header.ok_or_else(|| damage("has lost its header"))?;
        loop {
            match file.next(header.log_id).map_err(io)? {
                Next::Frame { lsn, .. } if lsn <= at => {}
                Next::Frame { lsn, payload } if lsn == at + 1 && lsn <= last => {
                    for record in frame::records(payload) {
                        let record = record.map_err(|e| e.to_string());
                        record.and_then(&mut apply).map_err(|reason| LogError::Replay {
                            path: path.clone(),
                            lsn,
                            reason,
                        })?;
                    }
                    at = lsn;
                }
                Next::End => break,
                Next::Frame { .. } | Next::Damage => return Err(damage("is damaged")),
            }
        }
    }
    if at != last {
        let reason = format!("ends at LSN {at} instead of {last}");
        return Err(LogError::Foreign { path: folder.join("log"), reason });
    }
    Ok(())
}

/// Removes older files; a failure leaves them for the next time, reading skips them.
fn remove_covered(folder: &Path, last: u64) {
    let old = |kind, keep: &dyn Fn(u64) -> bool| {
        segment_file::list(folder, kind).unwrap_or_default().into_iter().filter(move |(lsn, _)| !keep(*lsn)).collect()
    };
    let snapshots: Vec<_> = old(FileKind::Snapshot, &|lsn| lsn >= last);
    let segments: Vec<_> = old(FileKind::Segment, &|lsn| lsn > last);
    for (_, path) in snapshots.into_iter().chain(segments) {
        if let Err(error) = fs::remove_file(&path).and_then(|()| step(Step::Removed, &path)) {
            tracing::warn!(path = %path.display(), %error, "old log file not removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;
    use std::io;
    use std::os::unix::fs::{DirEntryExt, MetadataExt};
    use std::os::unix::process::ExitStatusExt;
    use std::path::PathBuf;
    use std::process::Command;
    use std::rc::Rc;

    use mooncake_core::{Effects, Record, SessionId, SessionSpec};
    use rustix::process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit};

    use super::super::step::watch;
    use super::super::{Folder, Recovered, Sink, recover};
    use super::*;

    const BOOT: [u8; 16] = [7; 16];
    /// The boot of another host, before.
    const ELSEWHERE: [u8; 16] = [9; 16];
    const ROLE: &str = "TEST_LOG_ROLE";
    const LOG: u64 = 0x1234_5678_9abc_def0;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            // Where a sync costs nothing, if there is such a place.
            let memory = Path::new("/dev/shm");
            let folder = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
            let path = folder.join(format!("mooncake-compactor-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Scratch(path)
        }

        /// A master's log that goes on behind an LSN.
        fn open(&self, boot: [u8; 16], last: u64, fsync: bool) -> Result<Log, LogError> {
            let sink = Sink::open(Folder::open(&self.0)?, LOG, last, boot, None)?;
            Ok(Log::new(LOG, last, Some(sink), fsync))
        }

        fn log(&self, fsync: bool) -> Log {
            self.open(BOOT, 0, fsync).unwrap()
        }

        fn current(&self) -> PathBuf {
            self.0.join("current")
        }

        /// Sessions that a restart finds, each of which was one frame.
        fn found(&self) -> Result<Vec<u64>, LogError> {
            read(&self.current(), &BOOT).map(|(_, sessions)| sessions)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(self.current()).unwrap();
            let mut names: Vec<String> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn read(folder: &Path, boot: &[u8; 16]) -> Result<(Recovered, Vec<u64>), LogError> {
        let mut sessions = Vec::new();
        let found = recover(folder, boot, &mut |record| {
            if let Record::SessionOpened { session, .. } = record {
                sessions.push(session.0);
            }
            Ok(())
        })?;
        Ok((found.expect("a log"), sessions))
    }

    fn append(log: &Log, sessions: std::ops::RangeInclusive<u64>) {
        for number in sessions {
            let spec = SessionSpec { secret: 1, name: "c".into(), boot_id: vec![1; 16], process: vec![2] };
            let opened = Record::SessionOpened { session: SessionId(number), spec };
            let mut effects = Effects { records: vec![opened], ..Effects::default() };
            log.commit(log.enqueue(&mut effects).unwrap(), |_| {}).unwrap();
        }
    }

    fn compacted(log: &Log) -> Result<(), LogError> {
        compact(log, &Config::default(), &AtomicBool::new(false))
    }

    #[test]
    fn a_compaction_never_removes_the_file_that_is_being_written() {
        let scratch = Scratch::new("active");
        let log = scratch.log(false);
        append(&log, 1..=9);
        // What a rotation on a full disk left behind.
        fs::write(scratch.current().join("log-000000000000000a.wal"), b"").unwrap();
        compacted(&log).unwrap();
        append(&log, 10..=10);
        assert_eq!(scratch.found().unwrap(), (1..=10).collect::<Vec<u64>>());
        compacted(&log).unwrap();
        append(&log, 11..=11);
        drop(log);
        assert_eq!(scratch.found().unwrap(), (1..=11).collect::<Vec<u64>>());
    }

    /// A disk that keeps what was synced and nothing else.
    #[derive(Default)]
    struct Disk {
        /// Names, as of the last time that the folder was synced.
        names: BTreeMap<String, Bytes>,
        /// Files by their numbers, which are given out again.
        files: BTreeMap<u64, Bytes>,
    }

    /// Bytes of a file, as of the last time that it was synced.
    type Bytes = Rc<RefCell<Vec<u8>>>;

    impl Disk {
        fn create(&mut self, file: &Path) {
            self.files.insert(fs::metadata(file).unwrap().ino(), Bytes::default());
        }

        fn sync(&mut self, file: &Path) {
            self.files[&fs::metadata(file).unwrap().ino()].replace(fs::read(file).unwrap());
        }

        fn sync_names(&mut self, folder: &Path) {
            let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
            self.names =
                entries.map(|e| (e.file_name().into_string().unwrap(), self.files[&e.ino()].clone())).collect();
        }

        /// What is there after the power failed.
        fn lay_out(&self, folder: &Path) {
            let _ = fs::remove_dir_all(folder);
            fs::create_dir_all(folder).unwrap();
            for (name, bytes) in &self.names {
                fs::write(folder.join(name), &*bytes.borrow()).unwrap();
            }
        }
    }

    #[test]
    fn whenever_the_power_fails_the_log_says_who_has_written_to_it() {
        for fsync in [false, true] {
            watch::with(|_, _| Ok(()));
            let scratch = Scratch::new("power");
            let elsewhere = scratch.open(ELSEWHERE, 0, false).unwrap();
            append(&elsewhere, 1..=3);
            drop(elsewhere);
            let disk = Rc::new(RefCell::new(Disk::default()));
            let first = scratch.current().join("log-0000000000000001.wal");
            disk.borrow_mut().create(&first);
            disk.borrow_mut().sync(&first);
            disk.borrow_mut().sync_names(&scratch.current());

            let (seen, ours) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(false)));
            let (after, current) = (scratch.0.join("after"), scratch.current());
            let check = {
                let (disk, ours) = (disk.clone(), ours.clone());
                move |step: Step| {
                    disk.borrow().lay_out(&after);
                    let (found, sessions) = read(&after, &[5; 16]).expect("another boot always starts");
                    assert!(sessions.starts_with(&[1, 2, 3]), "{step:?}: {sessions:?}");
                    if ours.get() {
                        assert_eq!(found.last_boot, Some(BOOT), "{step:?} of {:?}", disk.borrow().names.keys());
                    }
                }
            };
            let watched = {
                let (seen, check) = (seen.clone(), check.clone());
                move |step, path: &Path| {
                    let mut disk = disk.borrow_mut();
                    match step {
                        Step::HeaderSynced => disk.sync(path),
                        Step::FolderSynced => disk.sync_names(&current),
                        Step::Snapshot => {
                            disk.sync(path);
                            disk.sync_names(&current);
                        }
                        Step::Created => disk.create(path),
                        Step::Named | Step::Removed => {}
                        // Frames count for nothing here.
                        Step::Synced => return Ok(()),
                    }
                    drop(disk);
                    seen.borrow_mut().push(step);
                    check(step);
                    Ok(())
                }
            };
            watch::with(watched);
            let log = scratch.open(BOOT, 3, fsync).unwrap();
            // From here on it appends.
            ours.set(true);
            check(Step::Named);
            append(&log, 4..=6);
            compacted(&log).unwrap();
            append(&log, 7..=9);
            compacted(&log).unwrap();
            drop(log);

            use Step::{Created, FolderSynced, HeaderSynced, Named, Removed, Snapshot};
            let started = [Created, HeaderSynced, Named, FolderSynced];
            let rotated: &[Step] = if fsync { &started } else { &[Created, Named] };
            let replaced = [HeaderSynced, FolderSynced, Created, Snapshot, Removed];
            let first = [&started[..], rotated, &replaced, &[Removed], rotated, &replaced, &[Removed]].concat();
            assert_eq!(*seen.borrow(), first, "nothing is removed before its successor is on the disk");
        }
    }

    #[test]
    fn wherever_a_rotation_or_a_start_fails_the_log_goes_on_where_it_was() {
        for fsync in [false, true] {
            for fails_at in 1.. {
                let scratch = Scratch::new("failing");
                let log = scratch.log(fsync);
                append(&log, 1..=4);
                compacted(&log).unwrap();
                append(&log, 5..=9);
                let steps = Rc::new(Cell::new(0));
                let counted = steps.clone();
                watch::with(move |step, _| {
                    counted.set(counted.get() + 1);
                    // A file that is not removed is left for the next time.
                    let fails = counted.get() == fails_at && step != Step::Removed;
                    if fails { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
                });
                let done = compacted(&log);
                assert_eq!(scratch.found().unwrap(), (1..=9).collect::<Vec<u64>>(), "step {fails_at}");
                assert!(done.is_ok() || scratch.names().contains(&"log-0000000000000005.wal".to_owned()));
                watch::with(|_, _| Ok(()));
                append(&log, 10..=11);
                compacted(&log).unwrap();
                append(&log, 12..=12);
                drop(log);
                assert_eq!(scratch.found().unwrap(), (1..=12).collect::<Vec<u64>>(), "step {fails_at}");
                assert_eq!(scratch.names(), ["log-000000000000000c.wal", "snapshot-000000000000000b.snap"]);
                if steps.get() < fails_at {
                    break;
                }
            }
        }
        for fails_at in 1..=4 {
            let scratch = Scratch::new("failing-start");
            append(&scratch.log(false), 1..=4);
            let before = scratch.names();
            let mut steps = 0;
            watch::with(move |_, _| {
                steps += 1;
                if steps == fails_at { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
            });
            let error = scratch.open(BOOT, 4, false).expect_err("it fails").to_string();
            assert!(error.contains("creating") && error.contains("log-0000000000000005.wal"), "{error}");
            assert_eq!(scratch.names(), before, "step {fails_at}");
            watch::with(|_, _| Ok(()));
            append(&scratch.open(BOOT, 4, false).unwrap(), 5..=5);
            assert_eq!(scratch.found().unwrap(), [1, 2, 3, 4, 5]);
        }
    }

    /// This very file's [`other_process`], in a process of its own. How it ended: by which signal, if by one.
    fn run(role: &str, folder: &Path) -> Option<i32> {
        let ended = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "log::compactor::tests::other_process", "--test-threads=1"])
            .env(ROLE, format!("{role} {}", folder.display()))
            .output()
            .unwrap();
        assert!(ended.status.success() || ended.status.signal().is_some(), "{ended:?}");
        ended.status.signal()
    }

    /// Not a test by itself: what the other process does.
    #[test]
    fn other_process() {
        let Ok(role) = std::env::var(ROLE) else { return };
        let (role, folder) = role.split_once(' ').unwrap();
        let scratch = std::mem::ManuallyDrop::new(Scratch(folder.into()));
        if role == "full" {
            return full(&scratch);
        }
        let mut left: u32 = role.parse().unwrap();
        let log = scratch.log(false);
        append(&log, 1..=4);
        compacted(&log).unwrap();
        append(&log, 5..=9);
        watch::with(move |_, _| {
            left -= 1;
            if left == 0 {
                kill_process(getpid(), Signal::KILL)?;
            }
            Ok(())
        });
        compacted(&log).unwrap();
    }

    #[test]
    fn wherever_a_compaction_is_killed_nothing_is_forgotten() {
        for step in 1.. {
            let scratch = Scratch::new("killed");
            let signal = run(&step.to_string(), &scratch.0);
            let (found, sessions) = read(&scratch.current(), &BOOT).unwrap();
            assert_eq!(sessions, (1..=9).collect::<Vec<u64>>(), "killed at step {step}");
            assert_eq!((found.last_lsn, found.last_boot), (9, Some(BOOT)), "killed at step {step}");
            let log = scratch.open(BOOT, 9, false).unwrap();
            append(&log, 10..=11);
            compacted(&log).unwrap();
            append(&log, 12..=12);
            assert_eq!(scratch.found().unwrap(), (1..=12).collect::<Vec<u64>>(), "killed at step {step}");
            assert_eq!(scratch.names(), ["log-000000000000000c.wal", "snapshot-000000000000000b.snap"]);
            if signal.is_none() {
                assert_eq!(step, 9, "killed at each step before");
                break;
            }
            assert_eq!(signal, Some(Signal::KILL.as_raw()));
        }
    }

    #[test]
    fn a_rotation_without_room_for_a_header_leaves_nothing_behind() {
        let scratch = Scratch::new("full");
        assert_eq!(run("full", &scratch.0), None);
    }

    /// In a process of its own: it sets a limit.
    fn full(scratch: &Scratch) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { crate::master::ignore_file_size_signal() }).unwrap();
        let log = scratch.log(false);
        append(&log, 1..=9);
        let usual = getrlimit(Resource::Fsize);
        setrlimit(Resource::Fsize, Rlimit { current: Some(1), ..usual }).unwrap();
        let refused = compacted(&log);
        setrlimit(Resource::Fsize, usual).unwrap();
        assert!(matches!(refused, Err(LogError::Io { action: "creating", .. })), "{refused:?}");
        assert_eq!(scratch.names(), ["log-0000000000000001.wal"]);
        compacted(&log).unwrap();
        append(&log, 10..=10);
        assert_eq!(scratch.found().unwrap(), (1..=10).collect::<Vec<u64>>());
    }
}
