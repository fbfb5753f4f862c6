//! What a compaction leaves, wherever it is cut off, and when there is one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};

use mooncake_core::{
    Config, Core, Effects, Ended, Origin, PutConfig, PutStarted, Record, RecordRef, SegmentSpec, SessionSpec,
    StartOutcome, Time,
};
use mooncake_ids::{GRANULE, Rid, SegmentUuid, SessionId};
use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit};
use tempfile::TempDir;

use super::super::step::watch;
use super::super::{Folder, Recovered, Sink, frame, recover};
use super::*;
use crate::eventually::eventually;

mod anew;
mod beside;
mod overrun;

const BOOT: [u8; 16] = [7; 16];
/// The boot of another host, before.
const ELSEWHERE: [u8; 16] = [9; 16];
const ROLE: &str = "TEST_LOG_ROLE";
const LOG: u64 = 0x1234_5678_9abc_def0;

struct Scratch {
    root: PathBuf,
    /// Removes it. None in a process that was handed it.
    _owned: Option<TempDir>,
}

impl Scratch {
    fn new() -> Scratch {
        // Where a sync costs nothing, if there is such a place.
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let folder = tempfile::Builder::new().prefix("mooncake-compactor-").tempdir_in(parent).unwrap();
        Scratch { root: folder.path().to_owned(), _owned: Some(folder) }
    }

    /// A master that goes on behind an LSN.
    fn open(&self, boot: [u8; 16], last: u64, fsync: bool) -> Result<Alive, LogError> {
        self.open_with(Config::default(), boot, last, fsync)
    }

    fn open_with(&self, config: Config, boot: [u8; 16], last: u64, fsync: bool) -> Result<Alive, LogError> {
        let mut core = Core::new(config);
        recover(&self.current(), &boot, &mut |record: RecordRef<'_>| {
            core.replay(record).map_err(|error| error.to_string())
        })?;
        let sink = Sink::open(Folder::open(&self.root)?, LOG, last, boot, None)?;
        Ok(Alive::new(core, Log::new(LOG, last, Some(sink), fsync)))
    }

    fn log(&self, fsync: bool) -> Alive {
        self.open(BOOT, 0, fsync).unwrap()
    }

    fn current(&self) -> PathBuf {
        self.root.join("current")
    }

    /// Sessions that a restart finds, each of which was one frame.
    fn found(&self) -> Result<Vec<u64>, LogError> {
        read(&self.current(), &BOOT).map(|(_, sessions)| sessions)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.current()).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// A core beside its log, as a master has them.
struct Alive {
    log: Arc<Log>,
    core: Mutex<Core>,
}

impl Alive {
    fn new(core: Core, log: Log) -> Alive {
        Alive { log: Arc::new(log), core: Mutex::new(core) }
    }

    fn apply<R>(&self, operation: impl FnOnce(&mut Core, &mut Effects) -> R) -> R {
        let (mut core, mut fx) = (self.core.lock(), Effects::default());
        let result = operation(&mut core, &mut fx);
        let number = self.log.enqueue(&mut fx);
        drop(core);
        if let Some(number) = number {
            self.log.commit(number, |_| {}).unwrap();
        }
        result
    }
}

impl std::fmt::Debug for Alive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Alive").finish_non_exhaustive()
    }
}

impl std::ops::Deref for Alive {
    type Target = Log;
    fn deref(&self) -> &Log {
        &self.log
    }
}

impl Living for Alive {
    fn begin_snapshot(&self) -> Option<End> {
        let mut core = self.core.lock();
        core.begin_snapshot();
        Some(self.log.end_of_queue())
    }

    /// Much shorter ones than a master's: there are more of them.
    fn snapshot_slice(&self, _: usize) -> Option<Result<Option<SnapshotSlice>, AsideFull>> {
        Some(self.core.lock().snapshot_slice(5))
    }

    fn end_snapshot(&self) {
        self.core.lock().end_snapshot();
    }

    fn commit(&self, number: u64) -> Result<(), LogClosed> {
        self.log.commit(number, |_| {})
    }
}

fn read(folder: &Path, boot: &[u8; 16]) -> Result<(Recovered, Vec<u64>), LogError> {
    let mut sessions = Vec::new();
    let found = recover(folder, boot, &mut |record: RecordRef<'_>| {
        if let Record::SessionOpened { session, .. } = record {
            sessions.push(session.0);
        }
        Ok(())
    })?;
    Ok((found.expect("a log"), sessions))
}

fn append(log: &Alive, sessions: std::ops::RangeInclusive<u64>) {
    for number in sessions {
        let spec = SessionSpec { secret: 1, name: "c".into(), boot_id: vec![1; 16], process: vec![2] };
        let opened = Record::SessionOpened { session: SessionId(number), spec };
        log.apply(|core, effects| {
            core.replay(opened.clone()).unwrap();
            effects.records.push(opened);
        });
    }
}

fn compacted(log: &Alive) -> Result<(), LogError> {
    compact(log, log, &AtomicBool::new(false))
}

#[test]
fn a_compaction_never_removes_the_file_that_is_being_written() {
    let scratch = Scratch::new();
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
        self.names = entries.map(|e| (e.file_name().into_string().unwrap(), self.files[&e.ino()].clone())).collect();
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
        let scratch = Scratch::new();
        let elsewhere = scratch.open(ELSEWHERE, 0, false).unwrap();
        append(&elsewhere, 1..=3);
        drop(elsewhere);
        let disk = Rc::new(RefCell::new(Disk::default()));
        let first = scratch.current().join("log-0000000000000001.wal");
        disk.borrow_mut().create(&first);
        disk.borrow_mut().sync(&first);
        disk.borrow_mut().sync_names(&scratch.current());

        let (seen, ours) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(false)));
        let (after, current) = (scratch.root.join("after"), scratch.current());
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
                    Step::SnapshotSynced => disk.sync(path),
                    Step::Snapshot => disk.sync_names(&current),
                    Step::Created => disk.create(path),
                    Step::Named | Step::Removed => {}
                    // Frames count for nothing here.
                    Step::Synced | Step::Slice => return Ok(()),
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

        use Step::{Created, FolderSynced, HeaderSynced, Named, Removed, Snapshot, SnapshotSynced};
        let started = [Created, HeaderSynced, Named, FolderSynced];
        let rotated: &[Step] = if fsync { &started } else { &[Created, Named] };
        let replaced = [HeaderSynced, FolderSynced, Created, SnapshotSynced, Snapshot, Removed];
        let first = [&started[..], rotated, &replaced, &[Removed], rotated, &replaced, &[Removed]].concat();
        assert_eq!(*seen.borrow(), first, "nothing is removed before its successor is on the disk");
    }
}

#[test]
fn wherever_a_rotation_or_a_start_fails_the_log_goes_on_where_it_was() {
    for fsync in [false, true] {
        for fails_at in 1.. {
            let scratch = Scratch::new();
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
        let scratch = Scratch::new();
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
    let scratch = Scratch { root: folder.into(), _owned: None };
    if role == "full" {
        return full(&scratch);
    }
    let mut left: u32 = role.parse().unwrap();
    let pool = Rc::new(Busy::new(&scratch));
    (0..30).for_each(|_| pool.operate());
    compacted(&pool.alive).unwrap();
    (0..30).for_each(|_| pool.operate());
    let beside = pool.clone();
    watch::with(move |step, _| {
        left -= 1;
        if left == 0 {
            kill_process(getpid(), Signal::KILL)?;
        }
        // What other threads do meanwhile.
        if step == Step::Slice {
            beside.operate();
        }
        Ok(())
    });
    compacted(&pool.alive).unwrap();
}

/// A master that does something all the time. What it has answered is noted beside its log.
struct Busy {
    alive: Alive,
    /// Records of each frame, before they are in the log.
    truth: PathBuf,
    answered: PathBuf,
    dice: RefCell<u64>,
    views: RefCell<Vec<Rid>>,
    sessions: RefCell<Vec<SessionId>>,
}

impl Busy {
    fn new(scratch: &Scratch) -> Busy {
        let busy = Busy {
            alive: scratch.log(false),
            truth: scratch.root.join("truth"),
            answered: scratch.root.join("answered"),
            dice: RefCell::new(9),
            views: RefCell::default(),
            sessions: RefCell::default(),
        };
        busy.apply(|core, fx| core.begin(Time(1), None, fx));
        for number in 1..=3 {
            let session = busy.open();
            let uuid = SegmentUuid([number; 16]);
            let spec = SegmentSpec { uuid, name: "s".into(), bytes: 64 * GRANULE, endpoint: Vec::new() };
            let origin = busy.origin(session);
            busy.apply(|core, fx| core.mount(Time(1), origin, spec, 64 * GRANULE, fx)).unwrap();
        }
        busy
    }

    fn apply<R>(&self, operation: impl FnOnce(&mut Core, &mut Effects) -> R) -> R {
        let result = self.alive.apply(|core, fx| {
            let result = operation(core, fx);
            if !fx.records.is_empty() {
                let mut truth = fs::read(&self.truth).unwrap_or_default();
                let (start, lsn) = (frame::begin(&mut truth), self.alive.end_of_queue().lsn + 1);
                fx.records.iter().for_each(|record| frame::put_record(record, &mut truth));
                frame::finish(&mut truth, start, LOG, lsn);
                fs::write(&self.truth, truth).unwrap();
            }
            result
        });
        fs::write(&self.answered, self.alive.lsn().to_le_bytes()).unwrap();
        result
    }

    fn open(&self) -> SessionId {
        let spec = SessionSpec { secret: 1, name: "c".into(), boot_id: vec![1; 16], process: vec![2] };
        let session = self.apply(|core, fx| core.open_session(Time(1), spec, fx)).unwrap();
        self.sessions.borrow_mut().push(session);
        session
    }

    fn roll(&self, below: u64) -> u64 {
        let mut dice = self.dice.borrow_mut();
        *dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*dice >> 33) % below
    }

    fn origin(&self, session: SessionId) -> Origin {
        let sequence = self.alive.end_of_queue().number + 1;
        Origin { session, sequence, answered_below: sequence }
    }

    /// Puts, some of which do not end; removals, views, sessions that come and go.
    fn operate(&self) {
        let nth = self.roll(self.sessions.borrow().len() as u64) as usize;
        let session = self.sessions.borrow()[nth];
        let origin = self.origin(session);
        let key = format!("key-{}", self.roll(40));
        match self.roll(10) {
            0..=4 => {
                let started = self.apply(|core, fx| {
                    let entries = [(key.as_bytes(), GRANULE)];
                    core.put_start(Time(1), origin, &entries, &PutConfig::default(), false, fx)
                });
                if let Ok(PutStarted::Now(outcomes)) = started
                    && let [StartOutcome::Placed(replicas)] = &outcomes[..]
                    && self.roll(4) > 0
                {
                    let replicas = replicas.iter().map(|replica| (replica.rid, true)).collect();
                    let origin = self.origin(session);
                    self.apply(|core, fx| {
                        core.put_end(Time(1), origin, &[Ended { replicas, crc32c: 1, stays: false }], fx)
                    })
                    .unwrap();
                }
            }
            5 | 6 => {
                self.apply(|core, fx| core.remove(Time(1), origin, &[key.as_bytes()], true, fx)).unwrap();
            }
            7 => {
                let found = self.apply(|core, fx| core.pin(Time(1), origin, &[key.as_bytes()], fx)).unwrap();
                self.views.borrow_mut().extend(found.iter().flatten().map(|found| found.replicas[0].rid));
            }
            8 => {
                let view = self.views.borrow_mut().pop();
                let _ = self.apply(|core, fx| core.unpin(Time(1), origin, &Vec::from_iter(view), fx));
            }
            _ => {
                self.open();
                if nth > 2 {
                    self.sessions.borrow_mut().remove(nth);
                    self.apply(|core, fx| core.process_gone(Time(1), session, fx));
                }
            }
        }
    }
}

/// What a master says its state is, in an order of its own.
fn durable(core: &Core) -> Vec<String> {
    let mut records: Vec<String> = core.snapshot().map(|record| format!("{record:?}")).collect();
    records.sort();
    records
}

/// What the frames of a `truth` make, up to an LSN.
fn truly(scratch: &Scratch, last: u64) -> Core {
    let (bytes, mut core) = (fs::read(scratch.root.join("truth")).unwrap(), Core::new(Config::default()));
    let mut rest = &bytes[..];
    while let frame::Decoded::Frame { lsn, payload, size } = frame::decode(rest, LOG) {
        if lsn <= last {
            frame::records(payload).for_each(|record| core.replay::<&[u8]>(record.unwrap()).unwrap());
        }
        rest = &rest[size..];
    }
    core
}

#[test]
fn wherever_a_compaction_is_killed_all_that_was_answered_is_there_and_nothing_else() {
    for step in 1.. {
        let scratch = Scratch::new();
        let signal = run(&step.to_string(), &scratch.root);
        let answered = fs::read(scratch.root.join("answered")).unwrap();
        let answered = u64::from_le_bytes(answered.try_into().unwrap());
        let mut core = Core::new(Config::default());
        let found = recover(&scratch.current(), &BOOT, &mut |record: RecordRef<'_>| {
            core.replay(record).map_err(|e| e.to_string())
        });
        let found = found.unwrap().expect("a log");
        assert_eq!((found.last_lsn, found.last_boot), (answered, Some(BOOT)), "killed at step {step}");
        assert_eq!(durable(&core), durable(&truly(&scratch, answered)), "killed at step {step}");
        core.begin(Time(2), None, &mut Effects::default());
        core.check_invariants().unwrap_or_else(|wrong| panic!("killed at step {step}: {wrong}"));
        // The log goes on, and is compacted again.
        let log = scratch.open(BOOT, answered, false).unwrap();
        append(&log, 1_001..=1_002);
        compacted(&log).unwrap();
        append(&log, 1_003..=1_003);
        let sessions = scratch.found().unwrap();
        assert!(sessions.ends_with(&[1_001, 1_002, 1_003]), "killed at step {step}: {sessions:?}");
        let last = answered + 3;
        let names = [format!("log-{last:016x}.wal"), format!("snapshot-{:016x}.snap", last - 1)];
        assert_eq!(scratch.names(), names, "killed at step {step}");
        if signal.is_none() {
            assert!(step > 20, "killed at each step before, which are {step}");
            break;
        }
        assert_eq!(signal, Some(Signal::KILL.as_raw()));
    }
}

#[test]
fn a_rotation_without_room_for_a_header_leaves_nothing_behind() {
    let scratch = Scratch::new();
    assert_eq!(run("full", &scratch.root), None);
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

#[test]
fn a_compaction_makes_a_log_whole_again_that_was_damaged_behind_the_masters_back() {
    let scratch = Scratch::new();
    let log = scratch.log(false);
    append(&log, 1..=9);
    let path = scratch.current().join("log-0000000000000001.wal");
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    fs::write(&path, &bytes).unwrap();
    assert!(matches!(read(&scratch.current(), &BOOT), Err(LogError::Damaged { .. })));
    compacted(&log).unwrap();
    append(&log, 10..=10);
    assert_eq!(scratch.found().unwrap(), (1..=10).collect::<Vec<u64>>());
}

#[test]
fn a_compaction_covers_log_files_of_any_number_of_frames_and_none_is_left() {
    let scratch = Scratch::new();
    let log = scratch.log(false);
    compacted(&log).unwrap();
    assert_eq!(scratch.names(), ["log-0000000000000001.wal", "snapshot-0000000000000000.snap"]);
    append(&log, 1..=1);
    compacted(&log).unwrap();
    assert_eq!(scratch.names(), ["log-0000000000000002.wal", "snapshot-0000000000000001.snap"]);
    // Twice at the same place: the file that is open there is left alone.
    watch::with(|step, path| {
        assert!(step != Step::Created || path.to_str().unwrap().contains("snapshot-"), "{path:?}");
        Ok(())
    });
    compacted(&log).unwrap();
    watch::with(|_, _| Ok(()));
    append(&log, 2..=3);
    assert_eq!(scratch.names(), ["log-0000000000000002.wal", "snapshot-0000000000000001.snap"]);
    assert_eq!(scratch.found().unwrap(), [1, 2, 3]);
}

#[test]
fn a_master_that_stops_leaves_a_compaction_half_done_and_the_log_as_it_was() {
    let scratch = Scratch::new();
    let log = scratch.log(false);
    append(&log, 1..=9);
    assert!(compact(&log, &log, &AtomicBool::new(true)).is_err());
    assert_eq!(scratch.names(), ["log-0000000000000001.wal", "log-000000000000000a.wal"]);
    // It is told only when the snapshot is being written.
    let stop = Rc::new(AtomicBool::new(false));
    let told = stop.clone();
    watch::with(move |step, path| {
        let snapshot = path.file_name().unwrap().to_str().unwrap().starts_with("snapshot-");
        told.fetch_or(step == Step::Created && snapshot, Ordering::Relaxed);
        Ok(())
    });
    assert!(compact(&log, &log, &stop).is_err());
    watch::with(|_, _| Ok(()));
    assert_eq!(scratch.names(), ["log-0000000000000001.wal", "log-000000000000000a.wal"]);
    assert_eq!((log.stats().snapshots, scratch.found().unwrap()), (0, (1..=9).collect::<Vec<u64>>()));
}

/// Bytes of the frames in the log files.
fn bytes_of_log_files(scratch: &Scratch) -> u64 {
    let sizes = scratch.names().into_iter().filter(|name| name.ends_with(".wal"));
    sizes.map(|name| fs::metadata(scratch.current().join(name)).unwrap().len() - 64).sum()
}

fn snapshot_size(scratch: &Scratch) -> u64 {
    let name = scratch.names().into_iter().find(|name| name.ends_with(".snap")).unwrap();
    fs::metadata(scratch.current().join(name)).unwrap().len()
}

/// A log that says when it has outgrown itself, as a start opens it behind what it has found.
fn asking(scratch: &Scratch, found: &Recovered, compact_min: u64) -> (Alive, Receiver<()>) {
    let mut core = Core::new(Config::default());
    recover(&scratch.current(), &BOOT, &mut |record: RecordRef<'_>| {
        core.replay(record).map_err(|error| error.to_string())
    })
    .unwrap();
    let mut sink = Sink::open(Folder::open(&scratch.root).unwrap(), LOG, found.last_lsn, BOOT, None).unwrap();
    let (sender, receiver): (SyncSender<()>, _) = sync_channel(1);
    sink.keep_with(found, compact_min, sender, &scratch.root);
    (Alive::new(core, Log::new(LOG, found.last_lsn, Some(sink), false)), receiver)
}

/// Appends one by one, from `next` on, until the log asks to be compacted; gives the next number.
fn append_until_asked(log: &Alive, asked: &Receiver<()>, mut next: u64) -> u64 {
    while asked.try_recv().is_err() {
        append(log, next..=next);
        next += 1;
        assert!(next < 1000, "it never asks");
    }
    next
}

#[test]
fn a_log_asks_to_be_compacted_once_it_is_half_of_its_snapshot_and_not_before_also_behind_a_restart() {
    let scratch = Scratch::new();
    let (log, asked) = asking(&scratch, &Recovered::default(), 100);
    let next = append_until_asked(&log, &asked, 1);
    let frame = bytes_of_log_files(&scratch) / (next - 1);
    let bytes = bytes_of_log_files(&scratch);
    assert!(bytes > 100 && bytes - frame <= 100, "{bytes} at first");
    assert_eq!(log.stats().bytes, bytes);
    append(&log, next..=next + 40);
    let next = next + 41;

    compacted(&log).unwrap();
    while asked.try_recv().is_ok() {}
    let snapshot = snapshot_size(&scratch);
    assert!(snapshot / 2 > 100, "its snapshot decides from here on");
    assert_eq!((log.stats().snapshots, log.stats().bytes), (1, 0));
    let next = append_until_asked(&log, &asked, next);
    let bytes = bytes_of_log_files(&scratch);
    assert!(bytes > snapshot / 2 && bytes - frame <= snapshot / 2, "{bytes} behind {snapshot}");
    assert_eq!(log.stats().bytes, bytes);

    compacted(&log).unwrap();
    let snapshot = snapshot_size(&scratch);
    append(&log, next..=next + 4);
    assert!(asked.try_recv().is_err(), "not before");
    drop(log);
    let (found, _) = read(&scratch.current(), &BOOT).unwrap();
    assert_eq!((found.snapshot_bytes, found.cut_bytes), (snapshot, 0));
    assert_eq!(found.log_file_bytes, bytes_of_log_files(&scratch) + 64);
    let (log, asked) = asking(&scratch, &found, 100);
    assert_eq!(log.stats().bytes, found.log_file_bytes, "what was found counts");
    append_until_asked(&log, &asked, next + 5);
    // Numbers of more digits make frames a little longer.
    let (bytes, frame) = (bytes_of_log_files(&scratch) + 64, frame + 8);
    assert!(bytes > snapshot / 2 && bytes - frame <= snapshot / 2, "{bytes} behind {snapshot}");
}

#[test]
fn what_is_appended_beside_a_compaction_counts_for_the_next_one() {
    let scratch = Scratch::new();
    let (log, asked) = asking(&scratch, &Recovered::default(), 1_000);
    let log = Arc::new(log);
    append_until_asked(&log, &asked, 1);
    // When the file is made durable, the appends go to it already.
    let (beside, once) = (log.clone(), Cell::new(true));
    watch::with(move |step, _| {
        if step == Step::FolderSynced && once.take() {
            append(&beside, 500..=505);
        }
        Ok(())
    });
    compacted(&log).unwrap();
    watch::with(|_, _| Ok(()));
    let bytes = bytes_of_log_files(&scratch);
    assert!(bytes > 0);
    assert_eq!(log.stats().bytes, bytes);
}

const AT_ONCE: Pace = Pace { looks_up: Duration::from_millis(1), retries: Duration::ZERO, snapshots: None };

/// Ends a compactor, which must not take long.
fn stop(compactor: Compactor) {
    let (done, ended) = channel();
    std::thread::spawn(move || {
        drop(compactor);
        done.send(()).unwrap();
    });
    ended.recv_timeout(Duration::from_secs(10)).expect("it ends when it is told to");
}

#[test]
fn a_compaction_that_fails_is_counted_and_tried_again_and_memory_is_given_back_after_one() {
    static FREED: AtomicUsize = AtomicUsize::new(0);
    let scratch = Scratch::new();
    let log = Arc::new(scratch.log(false));
    append(&log, 1..=9);
    let (sender, wanted) = sync_channel(1);
    let freed: fn() = || _ = FREED.fetch_add(1, Ordering::Relaxed);
    let compactor = Compactor::start_at(log.log.clone(), log.clone(), wanted, Some(freed), AT_ONCE).unwrap();
    // It looks up a few times meanwhile, and stays.
    std::thread::sleep(Duration::from_millis(20));
    let hidden = scratch.root.join("hidden");
    fs::rename(scratch.current(), &hidden).unwrap();
    for failed in 1..=2 {
        sender.send(()).unwrap();
        eventually("a failure is counted", || log.stats().snapshots_failed == failed);
    }
    fs::rename(&hidden, scratch.current()).unwrap();
    let before = FREED.load(Ordering::Relaxed);
    for done in 1..=2 {
        append(&log, 10 * done..=10 * done);
        sender.send(()).unwrap();
        eventually("it is tried again", || log.stats().snapshots == done);
    }
    eventually("what it needed is given back", || FREED.load(Ordering::Relaxed) >= before + 2);
    stop(compactor);
    assert_eq!((log.stats().snapshots_failed, log.stats().snapshots), (2, 2));
    assert_eq!(scratch.found().unwrap(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20]);
    drop(sender);
}

#[test]
fn a_compactor_ends_at_once_while_it_waits_for_work_and_while_it_waits_after_a_failure() {
    let scratch = Scratch::new();
    let log = Arc::new(scratch.log(false));
    append(&log, 1..=9);
    fs::rename(scratch.current(), scratch.root.join("hidden")).unwrap();
    for fails in [false, true] {
        let (sender, wanted) = sync_channel(1);
        let pace = Pace { retries: Duration::from_secs(3600), ..AT_ONCE };
        let compactor = Compactor::start_at(log.log.clone(), log.clone(), wanted, None, pace).unwrap();
        if fails {
            sender.send(()).unwrap();
            eventually("a failure is counted", || log.stats().snapshots_failed == 1);
            // A full disk is not hammered.
            sender.send(()).unwrap();
        }
        stop(compactor);
        assert_eq!(log.stats().snapshots_failed, u64::from(fails));
        drop(sender);
    }
}

#[test]
fn a_snapshot_comes_in_time_of_what_is_new_and_none_of_what_has_one() {
    let scratch = Scratch::new();
    let log = Arc::new(scratch.log(false));
    append(&log, 1..=9);
    // This log is never as large as to be asked for.
    let (_sender, wanted) = sync_channel(1);
    let pace = Pace { snapshots: Some(Duration::from_millis(10)), ..AT_ONCE };
    let compactor = Compactor::start_at(log.log.clone(), log.clone(), wanted, None, pace).unwrap();
    eventually("a snapshot in time", || log.stats().snapshots == 1);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(log.stats().snapshots, 1, "nothing is new");
    append(&log, 10..=10);
    eventually("another one in time", || log.stats().snapshots == 2);
    stop(compactor);
    assert_eq!(scratch.found().unwrap(), (1..=10).collect::<Vec<u64>>());
}
