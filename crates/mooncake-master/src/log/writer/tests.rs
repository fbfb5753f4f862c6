//! What is in the log, on the disk and in the witness when others hear of it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use mooncake_core::{Config, Core, Push, Record, Time, To};
use mooncake_ids::{Rid, SessionId};
use tempfile::TempDir;

use super::super::step::watch;
use super::*;
use crate::machine::start::Seen;

const BOOT: [u8; 16] = [7; 16];
const LOG: u64 = 9;

/// A state folder, and one for witnesses.
struct Scratch(TempDir);

impl Scratch {
    fn new() -> Scratch {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("witness")).unwrap();
        Scratch(folder)
    }

    fn log(&self, last: u64, witness: Option<Witness>, fsync: bool) -> Arc<Log> {
        let sink = Sink::open(Folder::open(&self.0.path().join("log")).unwrap(), LOG, last, BOOT, witness).unwrap();
        Arc::new(Log::new(LOG, last, Some(sink), fsync))
    }

    /// As the next master finds it, unlocked but for other tests' children, which hold what was open until they are
    /// what they are to be.
    fn folder(&self) -> Folder {
        let began = Instant::now();
        loop {
            match Folder::open(&self.0.path().join("log")) {
                Ok(folder) => return folder,
                Err(error) => assert!(began.elapsed() < Duration::from_secs(10), "{error}"),
            }
        }
    }

    fn witness(&self) -> Witness {
        Witness::anew(&self.0.path().join("witness"), LOG, None).unwrap()
    }

    /// What the witness says, where there is one.
    fn seen(&self) -> Option<Seen> {
        Witness::find(&self.0.path().join("witness"), LOG).map(|found| found.seen)
    }
}

fn commit(log: &Log, effects: &mut Effects) {
    log.commit(log.enqueue(effects).unwrap(), |_| {}).unwrap();
}

fn dropped() -> Effects {
    Effects { records: vec![Record::Dropped(Rid(2))], ..Effects::default() }
}

/// A raise of the epoch, which is two.
fn raise() -> Effects {
    let (mut core, mut effects) = (Core::new(Config::default()), Effects::default());
    core.begin(Time(0), None, &mut Effects::default());
    core.raise_epoch(Time(0), 2, &mut effects);
    effects
}

#[test]
fn where_calls_wait_for_the_disk_nothing_shows_before_it_is_there() {
    for fsync in [true, false] {
        let scratch = Scratch::new();
        let log = scratch.log(4, None, fsync);
        let synced = Rc::new(RefCell::new(Vec::new()));
        let (seen, watched) = (synced.clone(), log.clone());
        watch::with(move |step, _| {
            (step == Step::Synced).then(|| seen.borrow_mut().push(watched.lsn()));
            Ok(())
        });
        (0..2).for_each(|_| commit(&log, &mut dropped()));
        watch::with(|_, _| Ok(()));
        assert_eq!((&synced.borrow()[..], log.lsn()), (if fsync { &[4, 5] } else { &[][..] }, 6));
    }
}

#[test]
fn a_raise_is_on_the_disk_before_the_witness_vouches_for_it() {
    let scratch = Scratch::new();
    let log = scratch.log(4, Some(scratch.witness()), false);
    commit(&log, &mut dropped());
    log.rotate().unwrap();
    let before = scratch.seen();
    let synced = Rc::new(RefCell::new(Vec::new()));
    let (seen, folder) = (synced.clone(), scratch.0.path().join("witness"));
    watch::with(move |step, path| {
        let said = Witness::find(&folder, LOG).map(|found| found.seen);
        matches!(step, Step::Synced | Step::FolderSynced)
            .then(|| seen.borrow_mut().push((path.file_name().unwrap().to_owned(), said)));
        Ok(())
    });
    commit(&log, &mut raise());
    watch::with(|_, _| Ok(()));
    let all = ["log-0000000000000005.wal", "log-0000000000000006.wal", "current", "log"];
    assert_eq!(*synced.borrow(), all.map(|name| (name.into(), before)), "all of the log, and no other word yet");
    let (lsn, epoch) = (log.lsn(), log.epoch());
    assert_eq!((lsn, epoch.number, scratch.seen()), (6, 2, Some(Seen { lsn, epoch })));
}

#[test]
fn a_log_is_on_the_disk_whole_where_it_is_asked_to() {
    let scratch = Scratch::new();
    let log = scratch.log(4, None, false);
    commit(&log, &mut dropped());
    log.rotate().unwrap();
    commit(&log, &mut dropped());
    let synced = Rc::new(RefCell::new(Vec::new()));
    let seen = synced.clone();
    watch::with(move |step, path| {
        matches!(step, Step::Synced | Step::FolderSynced)
            .then(|| seen.borrow_mut().push(path.file_name().unwrap().to_owned()));
        Ok(())
    });
    log.sync().unwrap();
    let all = ["log-0000000000000005.wal", "log-0000000000000006.wal", "current", "log"];
    assert_eq!(*synced.borrow(), all);
    watch::with(|_, _| Err(io::ErrorKind::StorageFull.into()));
    log.sync().unwrap();
    watch::with(|_, _| Ok(()));
    assert!(log.is_lost(), "a disk that fails to sync has no log");
    log.close();
    log.sync().unwrap();
}

#[test]
fn a_witness_that_cannot_be_written_is_gone() {
    let scratch = Scratch::new();
    let mut witness = scratch.witness();
    // It takes no lower place than it has.
    witness.store(90).unwrap();
    let log = scratch.log(4, Some(witness), false);
    commit(&log, &mut dropped());
    assert_eq!(scratch.seen(), None, "it would vouch for a log that ends before what was told");
    // Another master of a copy of this log has one of its own.
    let other = Witness::anew(&scratch.0.path().join("witness"), LOG, Some(log.epoch())).unwrap();
    commit(&log, &mut dropped());
    assert_eq!((log.lsn(), log.stats().lost), (6, false), "the log goes on");
    assert!(scratch.seen().is_some(), "that of the other one stays");
    drop(other);
}

#[test]
fn only_a_log_whose_calls_wait_for_the_disk_needs_one_that_syncs() {
    let scratch = Scratch::new();
    let log = scratch.log(4, None, false);
    log.write_to(File::options().write(true).open("/dev/null").unwrap());
    commit(&log, &mut dropped());
    let LogStats { enabled, lost, .. } = log.stats();
    assert_eq!((enabled, lost, log.is_fsync(), log.lsn()), (true, false, false, 5));
}

#[test]
fn whoever_waits_with_others_returns_when_all_of_them_are_through_and_each_hears_once() {
    let scratch = Scratch::new();
    let log = scratch.log(4, Some(scratch.witness()), false);
    let over = |n| Effects { pushes: vec![(To::Session(SessionId(n)), Push::SessionOver(String::new()))], ..dropped() };
    let numbers: Vec<u64> = (1..=3).map(|n| log.enqueue(&mut over(n)).unwrap()).collect();
    assert_eq!((log.lsn(), log.enqueue(&mut Effects::default())), (4, None), "nothing is nothing to wait for");
    let heard = RefCell::new(Vec::new());
    let hear = |delivery: Delivery| match delivery {
        Delivery::Push(session, _) => heard.borrow_mut().push((session.0, scratch.seen().map(|seen| seen.lsn))),
        other => panic!("{other:?}"),
    };
    // The second of them comes first: all three are written, in their order.
    for number in [numbers[1], numbers[0], numbers[2]] {
        log.commit(number, hear).unwrap();
        assert_eq!((log.lsn(), log.stats().writes, log.stats().frames), (7, 1, 3));
    }
    assert_eq!(*heard.borrow(), [(1, Some(7)), (2, Some(7)), (3, Some(7))]);
    // A message alone is no frame.
    let number = log.enqueue(&mut Effects { records: Vec::new(), ..over(4) }).unwrap();
    log.commit(number, hear).unwrap();
    assert_eq!((log.lsn(), log.stats().writes, heard.borrow().len()), (7, 1, 4));
}

#[test]
fn a_log_that_was_closed_takes_nothing_more_and_is_unlocked() {
    for fsync in [false, true] {
        let scratch = Scratch::new();
        let log = scratch.log(0, Some(scratch.witness()), fsync);
        commit(&log, &mut dropped());
        let waits = log.enqueue(&mut dropped()).unwrap();
        log.close();
        assert!(log.is_closed() && !log.stats().lost);
        assert_eq!(log.commit(waits, |delivery| panic!("{delivery:?}")), Err(LogClosed));
        assert_eq!((log.lsn(), log.rotate().unwrap().is_none()), (1, true));
        let folder = scratch.folder();
        let found = super::super::recover(&folder.current(), &BOOT, &mut |_: mooncake_core::RecordRef<'_>| Ok(()))
            .unwrap()
            .unwrap();
        assert_eq!((found.last_lsn, found.cut_bytes), (1, 0));
        assert_eq!(scratch.seen().unwrap().lsn, 1, "the witness vouches for what is in the log");
    }
}

/// How an append fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    /// Nothing can be written.
    Write,
    /// What was written does not reach the disk.
    Sync,
    /// The same for a raise, which is synced in any log.
    RaiseSync,
}

impl Failure {
    const ALL: [(Failure, bool); 4] =
        [(Failure::Write, false), (Failure::Write, true), (Failure::Sync, true), (Failure::RaiseSync, false)];

    /// From now on appends fail so; gives what is to be appended.
    fn begin(self, log: &Log) -> Effects {
        match self {
            Failure::Write => log.write_to(File::open("/dev/null").unwrap()),
            // It takes everything, and syncs nothing.
            Failure::Sync => log.write_to(File::options().write(true).open("/dev/null").unwrap()),
            Failure::RaiseSync => watch::with(|step, _| match step {
                Step::Synced => Err(io::ErrorKind::StorageFull.into()),
                _ => Ok(()),
            }),
        }
        let effects = if self == Failure::RaiseSync { raise() } else { dropped() };
        Effects { pushes: vec![(To::Session(SessionId(1)), Push::SessionOver("over".to_owned()))], ..effects }
    }
}

/// Whether the log lies there, and how many were renamed away.
fn lying_there(scratch: &Scratch) -> (bool, usize) {
    let entries = std::fs::read_dir(scratch.0.path().join("log")).unwrap();
    let names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    (names.iter().any(|name| name == "current"), names.iter().filter(|name| name.starts_with("away-")).count())
}

#[test]
fn a_log_that_cannot_be_written_is_given_up_with_its_witness_before_anybody_hears() {
    for (failure, fsync) in Failure::ALL {
        let scratch = Scratch::new();
        let log = scratch.log(4, Some(scratch.witness()), fsync);
        commit(&log, &mut dropped());
        assert_eq!((scratch.seen().unwrap().lsn, log.is_fsync()), (5, fsync));
        let mut told = failure.begin(&log);
        let epoch = told.records.iter().fold(log.epoch(), Epoch::after);
        let number = log.enqueue(&mut told).unwrap();
        let heard = RefCell::new(0);
        log.commit(number, |_| {
            // Whoever puts the renamed log back must not have it vouched for: rids are given out without it from here
            // on.
            assert_eq!(scratch.seen(), None, "{failure:?}: its witness goes before the first word");
            assert_eq!((lying_there(&scratch), log.log_id() != LOG, log.lsn()), ((false, 1), true, 6), "{failure:?}");
            *heard.borrow_mut() += 1;
        })
        .unwrap();
        watch::with(|_, _| Ok(()));
        assert_eq!(*heard.borrow(), 1, "{failure:?}: what was asked is answered");
        let LogStats { enabled, lost, bytes, frames, writes, .. } = log.stats();
        assert_eq!((enabled, lost, bytes, frames), (false, true, 0, 2), "{failure:?}");
        assert!(!log.is_fsync() && !log.is_closed(), "nothing waits for a disk that is not written to");

        let id = log.log_id();
        (0..2).for_each(|_| commit(&log, &mut dropped()));
        assert_eq!((log.lsn(), log.log_id(), log.stats().frames, log.stats().writes), (8, id, 4, writes));
        let Standing { position, first_id } = log.standing();
        assert_eq!((position.lsn, position.log_id, first_id), (8, id, LOG), "positions go on");
        assert_eq!((log.epoch(), scratch.seen(), lying_there(&scratch)), (epoch, None, (false, 1)));
        assert!(log.rotate().unwrap().is_none(), "there is nothing to compact");
        let other = Folder::open(&scratch.0.path().join("log"));
        assert!(matches!(other, Err(LogError::Locked { .. })), "a new log may be begun there as long as it runs");
        log.close();
        scratch.folder();
    }
}

#[test]
fn a_log_that_can_neither_be_written_nor_given_up_ends_and_nobody_hears_what_it_lacks() {
    for (failure, fsync) in Failure::ALL {
        let scratch = Scratch::new();
        let log = scratch.log(4, Some(scratch.witness()), fsync);
        commit(&log, &mut dropped());
        // A file stands where the folder of the logs was: nothing in it can be renamed.
        std::fs::rename(scratch.0.path().join("log"), scratch.0.path().join("elsewhere")).unwrap();
        std::fs::write(scratch.0.path().join("log"), b"").unwrap();
        let mut told = failure.begin(&log);
        let number = log.enqueue(&mut told).unwrap();
        let refused = log.commit(number, |delivery| panic!("{failure:?}: {delivery:?}"));
        watch::with(|_, _| Ok(()));
        assert_eq!((refused, log.is_closed(), log.lsn()), (Err(LogClosed), true, 5), "{failure:?}");
        assert_eq!((log.stats().lost, log.log_id()), (true, LOG), "{failure:?}");
        let next = log.enqueue(&mut dropped()).unwrap();
        for number in [number, next] {
            assert_eq!(log.commit(number, |delivery| panic!("{delivery:?}")), Err(LogClosed), "{failure:?}");
        }
    }
}

#[test]
fn a_thread_waits_in_vain_for_a_slow_commit_once() {
    let log = Log::new(LOG, 0, None, false);
    let queue = || log.enqueue(&mut dropped()).unwrap();
    let (short, long) = (Duration::from_millis(1), Duration::from_secs(10));
    for _ in 0..2 {
        let slow = log.writer.lock();
        assert_eq!(log.commit_soon(queue(), short, |_| ()), Ok(false));
        let began = Instant::now();
        assert_eq!(log.commit_soon(queue(), long, |_| ()), Ok(false));
        assert!(began.elapsed() < long, "it does not wait");
        drop(slow);
        assert_eq!(log.commit_soon(queue(), short, |_| ()), Ok(true));
        // That one was in time: the caller waits for the next one again.
        let (held, holds) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let writer = log.writer.lock();
                held.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(20));
                drop(writer);
            });
            holds.recv().unwrap();
            assert_eq!(log.commit_soon(queue(), long, |_| ()), Ok(true));
        });
    }
}
