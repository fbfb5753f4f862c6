//! What happens at a compaction's slices: the master stops, or one breaks off.

use super::*;

/// A core at whose slices something happens.
struct AtEachSlice<F> {
    alive: Alive,
    happens: F,
    ended: AtomicUsize,
}

impl<F: Fn() + Send + Sync> Living for AtEachSlice<F> {
    fn begin_snapshot(&self) -> Option<End> {
        self.alive.begin_snapshot()
    }

    fn snapshot_slice(&self, most: usize) -> Option<Result<Option<SnapshotSlice>, AsideFull>> {
        (self.happens)();
        self.alive.snapshot_slice(most)
    }

    fn end_snapshot(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
        self.alive.end_snapshot();
    }

    fn commit(&self, number: u64) -> Result<(), LogClosed> {
        self.alive.commit(number)
    }
}

#[test]
fn a_folder_stays_locked_for_as_long_as_a_compaction_may_write_to_it() {
    let scratch = Scratch::new();
    let alive = scratch.log(false);
    append(&alive, 1..=9);
    let (log, root) = (alive.log.clone(), scratch.root.clone());
    let (closed, asked) = (log.clone(), AtomicUsize::new(0));
    let happens = move || {
        // The master stops beside it.
        closed.close();
        assert!(matches!(Folder::open(&root), Err(LogError::Locked { .. })), "another master could begin");
        asked.fetch_add(1, Ordering::Relaxed);
    };
    let living = AtEachSlice { alive, happens, ended: AtomicUsize::new(0) };
    // What it has is in the log already, so that it comes to its end.
    compact(&log, &living, &AtomicBool::new(false)).unwrap();
    Folder::open(&scratch.root).expect("nobody writes there any more");
    assert_eq!(scratch.found().unwrap(), (1..=9).collect::<Vec<u64>>());
}

#[test]
fn a_compaction_that_panics_is_a_failure_like_any_other_and_the_next_one_comes() {
    let scratch = Scratch::new();
    let alive = scratch.log(false);
    append(&alive, 1..=9);
    let (log, panics) = (alive.log.clone(), Arc::new(AtomicUsize::new(2)));
    let left = panics.clone();
    let happens = move || {
        let take_one = |left: usize| left.checked_sub(1);
        assert!(left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take_one).is_err(), "a slice breaks off");
    };
    let living = Arc::new(AtEachSlice { alive, happens, ended: AtomicUsize::new(0) });
    let (sender, wanted) = sync_channel(1);
    let compactor = Compactor::start_at(log.clone(), living.clone(), wanted, None, AT_ONCE).unwrap();
    for failed in 1..=2 {
        sender.send(()).expect("it is still there");
        eventually("it is counted", || log.stats().snapshots_failed == failed);
        assert_eq!(living.ended.load(Ordering::Relaxed), failed as usize, "nothing is put aside for it any more");
    }
    sender.send(()).expect("it is still there");
    eventually("the next one comes", || log.stats().snapshots == 1);
    stop(compactor);
    assert_eq!(scratch.found().unwrap(), (1..=9).collect::<Vec<u64>>());
}
