//! What is in the log, on the disk and in the witness when others hear of it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use mooncake_core::{Config, Core, Record, Rid, Time};

use super::super::step::watch;
use super::*;
use crate::machine::start::Seen;

const BOOT: [u8; 16] = [7; 16];
const LOG: u64 = 9;

/// A state folder, and one for witnesses.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let root = std::env::temp_dir().join(format!("mooncake-writer-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(root.join("witness")).unwrap();
        Scratch(root)
    }

    fn log(&self, last: u64, witness: Option<Witness>, fsync: bool) -> Arc<Log> {
        let sink = Sink::open(Folder::open(&self.0.join("log")).unwrap(), LOG, last, BOOT, witness).unwrap();
        Arc::new(Log::new(LOG, last, Some(sink), fsync))
    }

    fn witness(&self) -> Witness {
        Witness::anew(&self.0.join("witness"), LOG, None).unwrap()
    }

    /// What the witness says, where there is one.
    fn seen(&self) -> Option<Seen> {
        Witness::find(&self.0.join("witness"), LOG).map(|found| found.seen)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
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
        let scratch = Scratch::new("fsync");
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
    let scratch = Scratch::new("raise");
    let log = scratch.log(4, Some(scratch.witness()), false);
    commit(&log, &mut dropped());
    log.rotate().unwrap();
    let before = scratch.seen();
    let synced = Rc::new(RefCell::new(Vec::new()));
    let (seen, folder) = (synced.clone(), scratch.0.join("witness"));
    watch::with(move |step, path| {
        let said = Witness::find(&folder, LOG).map(|found| found.seen);
        (step == Step::Synced).then(|| seen.borrow_mut().push((path.file_name().unwrap().to_owned(), said)));
        Ok(())
    });
    commit(&log, &mut raise());
    watch::with(|_, _| Ok(()));
    let files = ["log-0000000000000005.wal", "log-0000000000000006.wal"];
    assert_eq!(*synced.borrow(), files.map(|file| (file.into(), before)), "all of the log, and no other word yet");
    let (lsn, reign) = (log.lsn(), log.reign());
    assert_eq!((lsn, reign.epoch, scratch.seen()), (6, 2, Some(Seen { lsn, reign })));
}

#[test]
fn a_witness_that_cannot_be_written_is_gone() {
    let scratch = Scratch::new("witness");
    let mut witness = scratch.witness();
    // It takes no lower place than it has.
    witness.store(90).unwrap();
    let log = scratch.log(4, Some(witness), false);
    commit(&log, &mut dropped());
    assert_eq!(scratch.seen(), None, "it would vouch for a log that ends before what was told");
    commit(&log, &mut dropped());
    assert_eq!((log.lsn(), log.stats().lost), (6, false), "the log goes on");
}
