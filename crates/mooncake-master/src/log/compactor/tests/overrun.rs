//! What operations change beside a snapshot is bounded: beyond that the log's rotation waits, operations never do.

use super::*;

/// Sessions that end beside one attempt: more than is put aside.
const END: u64 = 100;

/// A core beside whose first slices sessions end, as often as there are attempts left.
struct Outrun {
    alive: Alive,
    attempts: AtomicUsize,
    ended: AtomicUsize,
}

impl Outrun {
    fn end_sessions(&self) {
        for _ in 0..END {
            let session = SessionId(1 + self.ended.fetch_add(1, Ordering::Relaxed) as u64);
            let before = self.alive.lsn();
            self.alive.apply(|core, fx| core.process_gone(Time(1), session, fx));
            assert!(self.alive.lsn() > before, "it is in the log by now, whatever becomes of the snapshot");
        }
    }
}

impl Living for Outrun {
    fn begin_snapshot(&self) -> Option<End> {
        self.alive.begin_snapshot()
    }

    fn snapshot_slice(&self, most: usize) -> Option<Result<Option<SnapshotSlice>, AsideFull>> {
        let take_one = |left: usize| left.checked_sub(1);
        if self.attempts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take_one).is_ok() {
            self.end_sessions();
        }
        self.alive.snapshot_slice(most)
    }

    fn end_snapshot(&self) {
        self.alive.end_snapshot();
    }

    fn commit(&self, number: u64) -> Result<(), LogClosed> {
        self.alive.commit(number)
    }
}

fn outrun(scratch: &Scratch, attempts: usize) -> Outrun {
    let config = Config { snapshot_aside_max: 10_000, ..Config::default() };
    let alive = scratch.open_with(config, BOOT, 0, false).unwrap();
    append(&alive, 1..=(attempts as u64 + 1) * END);
    Outrun { alive, attempts: AtomicUsize::new(attempts), ended: AtomicUsize::new(0) }
}

fn recovered(scratch: &Scratch) -> Core {
    let mut core = Core::new(Config::default());
    recover(&scratch.current(), &BOOT, &mut |record: RecordRef<'_>| core.replay(record).map_err(|e| e.to_string()))
        .unwrap()
        .expect("a log");
    core
}

#[test]
fn a_snapshot_that_operations_outrun_is_given_up_with_all_that_was_put_aside_and_no_operation_waits() {
    let scratch = Scratch::new();
    let living = outrun(&scratch, 1);
    let refused = compact(&living.alive, &living, &AtomicBool::new(false));
    let Err(LogError::SnapshotOverrun { source: AsideFull(bytes), .. }) = refused else { panic!("{refused:?}") };
    assert!((10_001..12_000).contains(&bytes), "{bytes}");
    assert!(living.alive.core.lock().end_snapshot().is_none(), "nothing is put aside any more");
    assert_eq!(living.ended.load(Ordering::Relaxed) as u64, END);
    let log_files = [1, 1 + 2 * END].map(|lsn| format!("log-{lsn:016x}.wal"));
    assert_eq!(scratch.names(), log_files, "nothing is removed, and nothing of the snapshot is left");
    assert_eq!(durable(&recovered(&scratch)), durable(&living.alive.core.lock()));
}

#[test]
fn the_log_is_compacted_once_operations_let_it() {
    let scratch = Scratch::new();
    let living = Arc::new(outrun(&scratch, 2));
    let log = living.alive.log.clone();
    let (sender, wanted) = sync_channel(1);
    let compactor = Compactor::start_at(log.clone(), living.clone(), wanted, None, AT_ONCE).unwrap();
    for failed in 1..=2 {
        sender.send(()).expect("it is still there");
        eventually("it is counted", || log.stats().snapshots_failed == failed);
    }
    sender.send(()).expect("it is still there");
    eventually("the next one comes to its end", || log.stats().snapshots == 1);
    stop(compactor);
    assert_eq!(durable(&recovered(&scratch)), durable(&living.alive.core.lock()));
    assert!(scratch.names().iter().any(|name| name.ends_with(".snap")), "{:?}", scratch.names());
}
