use std::panic::{AssertUnwindSafe, catch_unwind};

use mooncake_core::{Config, Record, RecordRef, To};
use mooncake_ids::{Rid, SessionId};
use tempfile::TempDir;

use super::*;
use crate::connections::{Entry, Limits};
use crate::log::{Folder, Sink, recover};
use crate::peer::Peer;

const BOOT: [u8; 16] = [7; 16];

impl Shared {
    /// An empty core over a log.
    pub fn of(log: Arc<Log>) -> Shared {
        Shared::limited(log, Limits::default())
    }

    /// The same, for no more connections than that.
    pub fn limited(log: Arc<Log>, limits: Limits) -> Shared {
        let told = hello::Identity {
            instance: [0; 16],
            boot_id: BOOT,
            unix_socket: String::new(),
            lookup_protect_ms: 0,
            cluster_id: "cluster".to_owned(),
            storage: None,
            tiers_allowed: true,
            pages: "127.0.0.1:9003".to_owned(),
        };
        let soft_pin = SoftPinTtl { default_ms: 0, max_ms: 0 };
        let identity =
            Identity { told, soft_pin, after_bulk_free: None, rpc_address: String::new(), events: Arc::default() };
        let (threads, processes) = (Threads::start().unwrap(), ProcessWatch::new().unwrap());
        let connections = Connections::new(limits);
        Shared::new(Core::new(Config::default()), log, identity, connections, threads, processes)
    }
}

#[test]
fn what_a_panic_leaves_of_an_operation_is_never_logged() {
    let root = tempfile::tempdir().unwrap();
    let sink = Sink::open(Folder::open(root.path()).unwrap(), 1, 0, BOOT, None).unwrap();
    let log = Arc::new(Log::new(1, 0, Some(sink), false));
    let shared = Shared::of(log);
    shared.apply(|_, _, effects| effects.records.push(Record::Epoch(1))).unwrap();
    let broken = catch_unwind(AssertUnwindSafe(|| {
        shared.apply(|_, _, effects| {
            effects.records.push(Record::Dropped(Rid(2)));
            panic!("the books contradict each other");
        })
    }));
    assert!(broken.is_err());
    let next = shared.apply(|_, _, effects| {
        assert!(effects.is_empty());
        effects.records.push(Record::Dropped(Rid(4)));
    });
    assert_eq!(next, Err(LogClosed), "the master stops");
    let mut found = 0;
    recover(&root.path().join("current"), &BOOT, &mut |record: RecordRef<'_>| {
        assert_eq!(record, Record::Epoch(1));
        found += 1;
        Ok(())
    })
    .unwrap();
    assert_eq!(found, 1);
}

fn endless() -> tokio::task::JoinHandle<()> {
    tokio::spawn(std::future::pending())
}

/// A log in a folder of its own, whose calls wait for the disk.
struct Synced {
    shared: Arc<Shared>,
    _root: TempDir,
}

impl Synced {
    fn new() -> Synced {
        let root = tempfile::tempdir().unwrap();
        let sink = Sink::open(Folder::open(root.path()).unwrap(), 1, 0, BOOT, None).unwrap();
        Synced { shared: Arc::new(Shared::of(Arc::new(Log::new(1, 0, Some(sink), true)))), _root: root }
    }
}

const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn what_nobody_waits_for_is_logged_and_delivered_all_the_same() {
    let synced = Synced::new();
    let (shared, log) = (&synced.shared, &synced.shared.log);
    assert!(log.is_fsync());
    for lsn in 1..=3 {
        shared.apply_aside(|_, _, effects| effects.records.push(Record::Dropped(Rid(2)))).unwrap();
        let logged = async {
            while log.lsn() < lsn {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(SOON, logged).await.expect("it never comes");
    }
    shared.apply_aside(|_, _, _| ()).unwrap();
    // Where there is no runtime it is done at once.
    let other = shared.clone();
    let lsn = std::thread::spawn(move || {
        other.apply_aside(|_, _, effects| effects.records.push(Record::Dropped(Rid(2)))).unwrap();
        other.log.lsn()
    });
    assert_eq!(lsn.join().unwrap(), 4);
}

#[tokio::test]
async fn an_operation_that_waits_for_the_disk_returns_behind_it_and_says_when_the_log_is_closed() {
    let synced = Synced::new();
    let (shared, log) = (&synced.shared, &synced.shared.log);
    for lsn in 1..=3 {
        let told = shared.apply_async(|_, _, effects| {
            effects.records.push(Record::Dropped(Rid(2)));
            lsn
        });
        assert_eq!((told.await, log.lsn()), (Ok(lsn), lsn));
    }
    log.close();
    let closed = shared.apply_async(|_, _, effects| effects.records.push(Record::Dropped(Rid(2)))).await;
    assert_eq!((closed, log.lsn()), (Err(LogClosed), 3));
    tokio::time::timeout(SOON, shared.failed.notified()).await.expect("the master is told that it cannot go on");
    let again = shared.apply_async(|_, _, _| 7).await;
    assert_eq!(again, Err(LogClosed), "what leaves nothing behind may tell of what did");
}

#[tokio::test]
async fn a_master_whose_operation_broke_off_is_told_that_it_cannot_go_on() {
    let shared = Arc::new(Shared::of(Arc::new(Log::new(1, 0, None, false))));
    let broken = catch_unwind(AssertUnwindSafe(|| shared.apply(|_, _, _| panic!("the books contradict each other"))));
    assert!(broken.is_err() && shared.log.is_closed());
    tokio::time::timeout(SOON, shared.failed.notified()).await.expect("it is told at once");
}

#[test]
fn no_snapshot_is_taken_of_books_that_an_operation_left_half_changed() {
    let shared = Arc::new(Shared::of(Arc::new(Log::new(1, 0, None, false))));
    open_session(&shared);
    let cut = shared.begin_snapshot().expect("they are whole");
    assert_eq!((cut.lsn, cut.number), (1, 1));
    assert!(matches!(shared.snapshot_slice(1), Some(Ok(Some(_)))));
    let broken = catch_unwind(AssertUnwindSafe(|| shared.apply(|_, _, _| panic!("the books contradict each other"))));
    assert!(broken.is_err() && shared.snapshot_slice(1).is_none());
    shared.end_snapshot();
    assert!(shared.begin_snapshot().is_none());
}

/// A process that is watched as that of a session, until it is killed.
struct Watched(std::process::Child);

impl Watched {
    fn new(shared: &Shared, session: u64) -> Watched {
        let child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        assert!(shared.processes.watch_pidfd(SessionId(session), pidfd));
        Watched(child)
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.kill();
    }
}

fn open_session(shared: &Shared) -> SessionId {
    let spec = mooncake_core::SessionSpec { secret: 1, name: "c:1".into(), boot_id: vec![7; 16], process: Vec::new() };
    shared.apply(|core, now, effects| core.open_session(now, spec, effects).unwrap()).unwrap()
}

#[test]
fn a_session_that_is_told_that_it_is_over_has_its_process_watched_no_more_and_no_other_has() {
    let shared = Arc::new(Shared::of(Arc::new(Log::new(1, 0, None, false))));
    let mut processes = [7, 8].map(|session| Watched::new(&shared, session));
    let over = (To::Session(SessionId(7)), mooncake_core::Push::SessionOver("over".to_owned()));
    let other = (To::Session(SessionId(8)), mooncake_core::Push::TakeEpoch(mooncake_core::Epoch { number: 2, id: 1 }));
    shared.apply(|_, _, effects| effects.pushes.extend([over, other])).unwrap();
    processes.iter_mut().for_each(Watched::kill);
    assert_eq!(shared.processes.wait(SOON), [SessionId(8)]);
    assert!(shared.processes.wait(Duration::ZERO).is_empty(), "once");
}

#[test]
fn an_operation_that_leaves_work_that_requests_wait_for_wakes_the_clock_once() {
    let shared = Arc::new(Shared::of(Arc::new(Log::new(1, 0, None, false))));
    shared.apply(|core, now, effects| core.begin(now, None, effects)).unwrap();
    let session = open_session(&shared);
    let mut sequence = 0;
    let mut origin = || {
        sequence += 1;
        mooncake_core::Origin { session, sequence, answered_below: sequence }
    };
    let spec = mooncake_core::SegmentSpec {
        uuid: mooncake_ids::SegmentUuid([1; 16]),
        name: "segment".into(),
        bytes: 1 << 20,
        endpoint: Vec::new(),
    };
    shared.apply(|core, now, effects| core.mount(now, origin(), spec, 1 << 20, effects).unwrap()).unwrap();
    let keys: Vec<[u8; 8]> = (0..1024_u64).map(u64::to_le_bytes).collect();
    let puts: Vec<(&[u8], u64)> = keys.iter().map(|key| (&key[..], 1)).collect();
    let plain = mooncake_core::PutConfig::default();
    let put = |core: &mut mooncake_core::Core, now, origin, puts: &[(&[u8], u64)], effects: &mut _| {
        core.put_start(now, origin, puts, &plain, true, effects).unwrap()
    };
    let started = shared.apply(|core, now, effects| put(core, now, origin(), &puts, effects)).unwrap();
    let mooncake_core::PutStarted::Now(outcomes) = started else { panic!("{started:?}") };
    let ended: Vec<mooncake_core::Ended> = outcomes
        .iter()
        .map(|outcome| match outcome {
            mooncake_core::StartOutcome::Placed(replicas) => mooncake_core::Ended {
                replicas: [(replicas[0].rid, true)].into_iter().collect(),
                crc32c: 0,
                stays: false,
            },
            other => panic!("{other:?}"),
        })
        .collect();
    shared.apply(|core, now, effects| core.put_end(now, origin(), &ended, effects).unwrap()).unwrap();
    shared.processes.wait(Duration::ZERO);
    let began = std::time::Instant::now();
    assert!(shared.processes.wait(Duration::from_millis(30)).is_empty());
    assert!(began.elapsed() >= Duration::from_millis(30), "nobody waits");
    let large = [(&b"large"[..], 1 << 20)];
    shared.apply(|core, now, effects| put(core, now, origin(), &large, effects)).unwrap();
    let began = std::time::Instant::now();
    assert!(shared.processes.wait(SOON).is_empty());
    assert!(began.elapsed() < SOON, "it is woken");
    let began = std::time::Instant::now();
    shared.processes.wait(Duration::from_millis(30));
    assert!(began.elapsed() >= Duration::from_millis(30), "once");
}

#[tokio::test]
async fn a_sweep_ends_connections_and_watches_of_sessions_that_are_over_and_no_others() {
    use crate::machine::ticker::TickDriver;

    let shared = Arc::new(Shared::of(Arc::new(Log::new(1, 0, None, false))));
    shared.apply(|core, now, effects| core.begin(now, None, effects)).unwrap();
    let (alive, over) = (open_session(&shared), open_session(&shared));
    let mut processes = [alive, over].map(|session| Watched::new(&shared, session.0));
    let entries = [(); 3].map(|()| Entry::new(&shared.connections, Peer::Process(1)).unwrap());
    let tasks = [endless(), endless(), endless()];
    for ((entry, task), session) in entries.iter().zip(&tasks).zip([alive, over, over]) {
        entry.is_anchor(session);
        Entry::set_task(&shared.connections, entry.number(), task.abort_handle());
    }
    for session in [alive, over] {
        _ = shared.clients.of(session, std::time::Instant::now());
    }
    shared.sweep();
    assert!(tasks.iter().all(|task| !task.is_finished()), "both are there");
    assert_eq!(shared.clients.sessions().len(), 2);
    // Without the message that would end them.
    shared
        .apply(|core, now, effects| {
            core.close_session(now, over, effects);
            effects.pushes.clear();
        })
        .unwrap();
    shared.sweep();
    let [goes_on, first, second] = tasks;
    for task in [first, second] {
        assert!(tokio::time::timeout(SOON, task).await.expect("it goes on").unwrap_err().is_cancelled());
    }
    assert!(!goes_on.is_finished());
    assert_eq!(shared.clients.sessions().into_iter().collect::<Vec<_>>(), [alive]);
    processes.iter_mut().for_each(Watched::kill);
    assert_eq!(shared.processes.wait(SOON), [alive]);
    goes_on.abort();
}
