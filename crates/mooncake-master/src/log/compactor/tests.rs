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

use mooncake_core::{Effects, Record, RecordRef, SessionId, SessionSpec};
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
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
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
    let found = recover(folder, boot, &mut |record: RecordRef<'_>| {
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
                    Step::SnapshotSynced => disk.sync(path),
                    Step::Snapshot => disk.sync_names(&current),
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
            assert_eq!(step, 10, "killed at each step before");
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

/// Frames of a segment, each with its header.
fn frames(bytes: &[u8]) -> Vec<&[u8]> {
    let mut rest = &bytes[segment_file::FILE_HEADER..];
    let mut found = Vec::new();
    while let frame::Decoded::Frame { size, .. } = frame::decode(rest, LOG) {
        found.push(&rest[..size]);
        rest = &rest[size..];
    }
    found
}

/// Orders of the nine frames in a closed segment that no master has left there.
const NOT_WHOLE: [(&str, &[usize]); 6] = [
    ("one in the middle is missing", &[0, 1, 2, 3, 5, 6, 7, 8]),
    ("the first is missing", &[1, 2, 3, 4, 5, 6, 7, 8]),
    ("the last is missing", &[0, 1, 2, 3, 4, 5, 6, 7]),
    ("two are swapped", &[0, 1, 2, 4, 3, 5, 6, 7, 8]),
    ("all but one are missing", &[0]),
    ("all are missing", &[]),
];

#[test]
fn a_log_that_is_not_whole_is_never_replaced_by_a_snapshot_of_what_is_left() {
    for (what, order) in NOT_WHOLE {
        let scratch = Scratch::new("not-whole");
        let log = scratch.log(false);
        append(&log, 1..=9);
        let path = scratch.current().join("log-0000000000000001.wal");
        let whole = fs::read(&path).unwrap();
        let left: Vec<&[u8]> = order.iter().map(|at| frames(&whole)[*at]).collect();
        let left = [&whole[..segment_file::FILE_HEADER], &left.concat()].concat();
        fs::write(&path, &left).unwrap();
        assert!(matches!(compacted(&log), Err(LogError::Foreign { .. })), "{what}");
        assert_eq!(scratch.names(), ["log-0000000000000001.wal", "log-000000000000000a.wal"], "{what}");
        assert_eq!(fs::read(&path).unwrap(), left, "{what}: a person may still find more");
        assert_eq!(log.stats().snapshots, 0, "{what}");
        // It is put back in place, and the next compaction has all of it.
        fs::write(&path, &whole).unwrap();
        append(&log, 10..=10);
        compacted(&log).unwrap();
        assert_eq!(scratch.found().unwrap(), (1..=10).collect::<Vec<u64>>(), "{what}");
    }
}

#[test]
fn a_damaged_byte_in_a_closed_file_stops_the_compaction_not_the_log() {
    let scratch = Scratch::new("damaged");
    let log = scratch.log(false);
    append(&log, 1..=9);
    let path = scratch.current().join("log-0000000000000001.wal");
    let whole = fs::read(&path).unwrap();
    for at in [0, 40, 70, 100, whole.len() - 1] {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        fs::write(&path, &bytes).unwrap();
        assert!(matches!(compacted(&log), Err(LogError::Foreign { .. })), "byte {at}");
        assert!(path.exists() && !scratch.names().iter().any(|name| name.contains("snapshot")), "byte {at}");
    }
    fs::write(&path, &whole).unwrap();
    append(&log, 10..=10);
    assert_eq!(scratch.found().unwrap(), (1..=10).collect::<Vec<u64>>(), "appends went on");
}

#[test]
fn a_compaction_covers_segments_of_any_number_of_frames_and_none_is_left() {
    let scratch = Scratch::new("few");
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
    let scratch = Scratch::new("stops");
    let log = scratch.log(false);
    append(&log, 1..=9);
    assert!(compact(&log, &Config::default(), &AtomicBool::new(true)).is_err());
    assert_eq!(scratch.names(), ["log-0000000000000001.wal", "log-000000000000000a.wal"]);
    // It is told only when the snapshot is being written.
    let stop = Rc::new(AtomicBool::new(false));
    let told = stop.clone();
    watch::with(move |step, path| {
        let snapshot = path.file_name().unwrap().to_str().unwrap().starts_with("snapshot-");
        told.fetch_or(step == Step::Created && snapshot, Ordering::Relaxed);
        Ok(())
    });
    assert!(compact(&log, &Config::default(), &stop).is_err());
    watch::with(|_, _| Ok(()));
    assert_eq!(scratch.names(), ["log-0000000000000001.wal", "log-000000000000000a.wal"]);
    assert_eq!((log.stats().snapshots, scratch.found().unwrap()), (0, (1..=9).collect::<Vec<u64>>()));
}

/// Bytes of the frames in the segments.
fn bytes_of_segments(scratch: &Scratch) -> u64 {
    let sizes = scratch.names().into_iter().filter(|name| name.ends_with(".wal"));
    sizes.map(|name| fs::metadata(scratch.current().join(name)).unwrap().len() - 64).sum()
}

fn snapshot_size(scratch: &Scratch) -> u64 {
    let name = scratch.names().into_iter().find(|name| name.ends_with(".snap")).unwrap();
    fs::metadata(scratch.current().join(name)).unwrap().len()
}

/// A log that says when it has outgrown itself, as a start opens it behind what it has found.
fn asking(scratch: &Scratch, found: &Recovered, compact_min: u64) -> (Log, Receiver<()>) {
    let mut sink = Sink::open(Folder::open(&scratch.0).unwrap(), LOG, found.last_lsn, BOOT, None).unwrap();
    let (sender, receiver): (SyncSender<()>, _) = sync_channel(1);
    sink.compact_with(found, compact_min, sender);
    (Log::new(LOG, found.last_lsn, Some(sink), false), receiver)
}

/// Appends one by one, from `next` on, until the log asks to be compacted; gives the next number.
fn append_until_asked(log: &Log, asked: &Receiver<()>, mut next: u64) -> u64 {
    while asked.try_recv().is_err() {
        append(log, next..=next);
        next += 1;
        assert!(next < 1000, "it never asks");
    }
    next
}

#[test]
fn a_log_asks_to_be_compacted_once_it_is_twice_its_snapshot_and_not_before_also_behind_a_restart() {
    let scratch = Scratch::new("asks");
    let (log, asked) = asking(&scratch, &Recovered::default(), 1_000);
    let next = append_until_asked(&log, &asked, 1);
    let frame = bytes_of_segments(&scratch) / (next - 1);
    let bytes = bytes_of_segments(&scratch);
    assert!(bytes > 1_000 && bytes - frame <= 1_000, "{bytes} at first");
    assert_eq!(log.stats().bytes, bytes);

    compacted(&log).unwrap();
    let snapshot = snapshot_size(&scratch);
    assert!(2 * snapshot > 1_000, "its snapshot decides from here on");
    assert_eq!((log.stats().snapshots, log.stats().bytes), (1, 0));
    let next = append_until_asked(&log, &asked, next);
    let bytes = bytes_of_segments(&scratch);
    assert!(bytes > 2 * snapshot && bytes - frame <= 2 * snapshot, "{bytes} behind {snapshot}");
    assert_eq!(log.stats().bytes, bytes);

    compacted(&log).unwrap();
    let snapshot = snapshot_size(&scratch);
    append(&log, next..=next + 4);
    assert!(asked.try_recv().is_err(), "not before");
    drop(log);
    let (found, _) = read(&scratch.current(), &BOOT).unwrap();
    assert_eq!((found.snapshot_bytes, found.cut_bytes), (snapshot, 0));
    assert_eq!(found.segment_bytes, bytes_of_segments(&scratch) + 64);
    let (log, asked) = asking(&scratch, &found, 1_000);
    assert_eq!(log.stats().bytes, found.segment_bytes, "what was found counts");
    append_until_asked(&log, &asked, next + 5);
    // Numbers of more digits make frames a little longer.
    let (bytes, frame) = (bytes_of_segments(&scratch) + 64, frame + 8);
    assert!(bytes > 2 * snapshot && bytes - frame <= 2 * snapshot, "{bytes} behind {snapshot}");
}

#[test]
fn what_is_appended_beside_a_compaction_counts_for_the_next_one() {
    let scratch = Scratch::new("beside");
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
    let bytes = bytes_of_segments(&scratch);
    assert!(bytes > 0);
    assert_eq!(log.stats().bytes, bytes);
}

const AT_ONCE: Pace = Pace { looks_up: Duration::from_millis(1), retries: Duration::ZERO };

/// Waits for what another thread does.
fn eventually(what: &str, mut test: impl FnMut() -> bool) {
    let began = Instant::now();
    while !test() {
        assert!(began.elapsed() < Duration::from_secs(10), "not within 10 s: {what}");
        std::thread::yield_now();
    }
}

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
    let scratch = Scratch::new("thread");
    let log = Arc::new(scratch.log(false));
    append(&log, 1..=9);
    let (sender, wanted) = sync_channel(1);
    let freed: fn() = || _ = FREED.fetch_add(1, Ordering::Relaxed);
    let compactor = Compactor::start_at(log.clone(), wanted, Config::default(), Some(freed), AT_ONCE).unwrap();
    // It looks up a few times meanwhile, and stays.
    std::thread::sleep(Duration::from_millis(20));
    let hidden = scratch.0.join("hidden");
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
    let scratch = Scratch::new("ends");
    let log = Arc::new(scratch.log(false));
    append(&log, 1..=9);
    fs::rename(scratch.current(), scratch.0.join("hidden")).unwrap();
    for fails in [false, true] {
        let (sender, wanted) = sync_channel(1);
        let pace = Pace { retries: Duration::from_secs(3600), ..AT_ONCE };
        let compactor = Compactor::start_at(log.clone(), wanted, Config::default(), None, pace).unwrap();
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
