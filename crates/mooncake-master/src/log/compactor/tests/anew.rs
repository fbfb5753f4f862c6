//! What a lost log leaves that is begun anew, wherever that is cut off.

use super::*;
use crate::log::{FoundWitness, Witness, begin_anew};

/// A master whose log has been lost after some sessions, on a disk that has room again.
fn lost(scratch: &Scratch, sessions: u64) -> Alive {
    let (mut alive, _asked) = asking(scratch, &Recovered { log_id: LOG, ..Recovered::default() }, u64::MAX);
    alive.core = Mutex::new(Core::new(Config::default()));
    append(&alive, 1..=sessions - 1);
    lose(&alive, sessions);
    alive
}

/// One more session, whose frame finds no room.
fn lose(alive: &Alive, session: u64) {
    alive.write_to(fs::File::options().write(true).open("/dev/full").unwrap());
    append(alive, session..=session);
    assert!(alive.is_lost());
}

fn is_without_a_log(scratch: &Scratch, alive: &Alive) -> bool {
    alive.is_lost() && !scratch.current().exists() && !scratch.root.join("begun").exists()
}

#[test]
fn a_lost_log_that_begins_anew_has_all_that_is_there_and_what_comes_after() {
    let scratch = Scratch::new();
    let alive = lost(&scratch, 40);
    assert!(is_without_a_log(&scratch, &alive));
    let id = alive.log_id();
    let begun = begin_anew(&alive, &alive).unwrap();
    assert_eq!((begun.lsn, alive.is_lost(), alive.log_id() == id), (alive.lsn(), false, true));
    assert!(alive.stats().enabled && !alive.stats().lost);
    append(&alive, 41..=45);
    let (found, sessions) = read(&scratch.current(), &BOOT).unwrap();
    assert_eq!((found.log_id, found.last_lsn, sessions), (id, alive.lsn(), (1..=45).collect()));
    let FoundWitness { seen, .. } = Witness::find(&scratch.root, id).expect("vouched for");
    assert!(seen.vouches_for(found.last_lsn, seen.epoch) && seen.lsn == found.last_lsn, "{seen:?}");
    assert!(matches!(begin_anew(&alive, &alive), Err(LogError::NotLost)));
    // It is compacted, and lost, as any other.
    compacted(&alive).unwrap();
    assert_eq!(scratch.found().unwrap(), Vec::from_iter(1..=45));
    lose(&alive, 46);
    assert!(Witness::find(&scratch.root, id).is_none() && alive.log_id() != id);
    begin_anew(&alive, &alive).unwrap();
    assert_eq!(scratch.found().unwrap(), Vec::from_iter(1..=46));
}

#[test]
fn wherever_a_new_log_breaks_off_there_is_none_and_wherever_its_master_dies_there_is_none_or_a_whole_one() {
    for fails_at in 0.. {
        let scratch = Scratch::new();
        let alive = lost(&scratch, 40);
        let id = alive.log_id();
        let (current, steps) = (scratch.current(), Rc::new(Cell::new(0)));
        let made = steps.clone();
        watch::with(move |_, _| {
            // A master that dies here: the next one finds this.
            assert!(!current.exists() || read(&current, &BOOT).unwrap().1 == Vec::from_iter(1..=40));
            made.set(made.get() + 1);
            if made.get() == fails_at + 1 { Err(io::Error::other("the disk fails")) } else { Ok(()) }
        });
        let begun = begin_anew(&alive, &alive);
        watch::with(|_, _| Ok(()));
        let broke_off = begun.is_err();
        if broke_off {
            assert!(is_without_a_log(&scratch, &alive), "step {fails_at}");
            assert_eq!(alive.log_id(), id, "step {fails_at}: clients have heard of no other log");
            append(&alive, 41..=41);
            begin_anew(&alive, &alive).unwrap();
        } else {
            append(&alive, 41..=41);
        }
        assert_eq!(scratch.found().unwrap(), Vec::from_iter(1..=41), "step {fails_at}");
        if steps.get() <= fails_at {
            assert!(fails_at > 10, "{fails_at} steps");
            return;
        }
    }
}

#[test]
fn what_is_done_while_a_log_begins_anew_is_in_it() {
    let scratch = Scratch::new();
    let alive = Arc::new(lost(&scratch, 40));
    let (other, next) = (alive.clone(), Rc::new(Cell::new(41)));
    let last = next.clone();
    watch::with(move |step, _| {
        if step == Step::Slice {
            assert!(matches!(begin_anew(&other, &*other), Err(LogError::Snapshotting)), "one at a time, and no wait");
            append(&other, next.get()..=next.get());
            next.set(next.get() + 1);
        }
        Ok(())
    });
    begin_anew(&alive, &*alive).unwrap();
    watch::with(|_, _| Ok(()));
    assert!(last.get() > 43, "{} slices", last.get() - 41);
    assert_eq!(scratch.found().unwrap(), Vec::from_iter(1..last.get()));
}

#[test]
fn a_new_log_whose_append_fails_before_it_is_whole_is_none() {
    let scratch = Scratch::new();
    let alive = Arc::new(lost(&scratch, 40));
    let (other, failed) = (alive.clone(), Cell::new(false));
    watch::with(move |step, _| {
        if step == Step::Slice && !failed.replace(true) {
            lose(&other, 41);
        }
        Ok(())
    });
    assert!(begin_anew(&alive, &*alive).is_err());
    watch::with(|_, _| Ok(()));
    assert!(is_without_a_log(&scratch, &alive));
    begin_anew(&alive, &*alive).unwrap();
    assert_eq!(scratch.found().unwrap(), Vec::from_iter(1..=41));
}

#[test]
fn a_log_that_ends_with_its_master_or_was_never_there_does_not_begin_anew() {
    let scratch = Scratch::new();
    let alive = lost(&scratch, 4);
    // Still its own: no other master begins there meanwhile.
    assert!(matches!(Folder::open(&scratch.root), Err(LogError::Locked { .. })));
    alive.close();
    assert!(matches!(begin_anew(&alive, &alive), Err(LogError::Stops)));
    Folder::open(&scratch.root).unwrap();
    let without = Alive::new(Core::new(Config::default()), Log::new(LOG, 0, None, false));
    assert!(matches!(begin_anew(&without, &without), Err(LogError::NoLog)));
}
