//! Every reply lost once: whatever the call changed, it changed once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mooncake_client::{
    Destination, ErrorKind, GetInto, Health, PutItem, PutOptions, PutOutcome, PutRanges, RemoveOutcome, Source, Store,
    StoreError, WriteRange,
};
use mooncake_master::Wal;

use crate::bit_flip;
use crate::cluster::{Cluster, MIB, eventually, put, value};
use crate::proxy::{Losses, Proxy};

/// A pool whose clients reach the master through a proxy only.
fn proxied() -> (Cluster, Proxy, Store) {
    proxied_with(64 * MIB)
}

/// The same, whose client lends so much memory.
fn proxied_with(segment: u64) -> (Cluster, Proxy, Store) {
    let cluster = Cluster::start_with(|settings| settings.unix_socket = false);
    let proxy = Proxy::to(cluster.address());
    let mut options = cluster.options(segment);
    options.master = proxy.address.clone();
    let store = Store::connect(options).unwrap();
    (cluster, proxy, store)
}

#[test]
fn a_put_survives_the_loss_of_any_of_its_replies() {
    let (_cluster, proxy, store) = proxied();
    put(&store, "warm", 100).unwrap();
    for (nth, key) in ["start", "end"].into_iter().enumerate() {
        let seen = proxy.losses.seen.load(Ordering::SeqCst);
        proxy.losses.lose.store((seen + nth as u64) as i64, Ordering::SeqCst);
        let before = proxy.lost();
        assert_eq!(put(&store, key, 3000).unwrap(), PutOutcome::Stored { replicas: 1 }, "{key}");
        assert_eq!(proxy.lost(), before + 1, "{key}");
        assert_eq!(store.get(key.as_bytes()).unwrap(), Some(value(key, 3000)));
    }
}

#[test]
fn a_batch_survives_the_loss_of_any_of_its_replies() {
    let (_cluster, proxy, store) = proxied();
    put(&store, "warm", 100).unwrap();
    for nth in 0..2 {
        let names: Vec<String> = (0..50).map(|n| format!("{nth}/{n}")).collect();
        let values: Vec<Vec<u8>> = names.iter().map(|name| value(name, 2000)).collect();
        let sources: Vec<[Source<'_>; 1]> = values.iter().map(|value| [Source::new(value)]).collect();
        let items: Vec<PutItem<'_>> =
            names.iter().zip(&sources).map(|(name, value)| PutItem { key: name.as_bytes(), value }).collect();
        let seen = proxy.losses.seen.load(Ordering::SeqCst);
        proxy.losses.lose.store((seen + nth) as i64, Ordering::SeqCst);
        for result in store.put_batch(&items, &PutOptions::default()) {
            assert_eq!(result.unwrap(), PutOutcome::Stored { replicas: 1 });
        }
        assert_eq!(proxy.lost(), nth + 1);
        let mut into: Vec<Vec<u8>> = values.iter().map(|value| vec![0; value.len()]).collect();
        let mut gets: Vec<GetInto<'_>> = names
            .iter()
            .zip(&mut into)
            .map(|(name, into)| GetInto { key: name.as_bytes(), destinations: vec![Destination::new(into)] })
            .collect();
        for result in store.get_into(&mut gets) {
            assert_eq!(result.unwrap(), Some(2000));
        }
        drop(gets);
        assert_eq!(into, values);
    }
}

#[test]
fn removes_queries_and_views_survive_the_loss_of_their_reply() {
    let (_cluster, proxy, store) = proxied();
    for key in ["a", "b", "c"] {
        put(&store, key, 5000).unwrap();
    }
    proxy.lose_next();
    assert_eq!(store.exists(&["a", "x"]).unwrap(), [true, false]);
    proxy.lose_next();
    assert_eq!(store.get(b"a").unwrap(), Some(value("a", 5000)));
    proxy.lose_next();
    // The first one did remove it; the retry is told the same.
    assert_eq!(store.remove(&["a"], true).unwrap(), [RemoveOutcome::Removed]);
    proxy.lose_next();
    let view = store.view(&["b"]).remove(0).unwrap().unwrap();
    assert_eq!(view[..], value("b", 5000)[..]);
    proxy.lose_next();
    assert_eq!(store.remove_all(true).unwrap(), 2);
    assert_eq!(proxy.lost(), 5);
    assert_eq!(view[..], value("b", 5000)[..]);
    assert_eq!(store.health(), Health::Ok);
}

/// A store that reaches the master through a proxy, whose caller gives up once so many requests and replies have been
/// held on the way.
fn impatient(cluster: &Cluster, segment: u64) -> (Proxy, Store, Arc<AtomicU64>) {
    let proxy = Proxy::to(cluster.address());
    let main = std::thread::current().id();
    let gives_up_at = Arc::new(AtomicU64::new(u64::MAX));
    let (limit, losses) = (gives_up_at.clone(), proxy.losses.clone());
    let mut options = cluster.options(segment);
    options.master = proxy.address.clone();
    options.lookup_timeout = Duration::from_secs(10);
    options.interrupted = Some(Arc::new(move || {
        std::thread::current().id() == main && losses.held.load(Ordering::SeqCst) >= limit.load(Ordering::SeqCst)
    }));
    let store = Store::connect(options).unwrap();
    (proxy, store, gives_up_at)
}

#[test]
fn an_interrupted_removal_takes_nothing_that_a_later_call_found() {
    let cluster = Cluster::start_with(|settings| settings.unix_socket = false);
    let (proxy, store, gives_up_at) = impatient(&cluster, 64 * MIB);
    put(&store, "k", 3000).unwrap();

    type Removal = fn(&Store) -> Result<(), mooncake_client::StoreError>;
    let removals: [(&str, Removal); 3] = [
        ("remove", |store| store.remove(&["k"], true).map(drop)),
        ("remove_all", |store| store.remove_all(true).map(drop)),
        ("remove_by_regex", |store| store.remove_by_regex("k", true).map(drop)),
    ];
    for (name, removal) in removals {
        proxy.losses.holding.store(true, Ordering::SeqCst);
        proxy.losses.hold.store(2, Ordering::SeqCst);
        let held = proxy.losses.held.load(Ordering::SeqCst);
        std::thread::scope(|scope| {
            // An earlier call that is still without its answer: what counts is not the lowest of those alone.
            let earlier = scope.spawn(|| store.remove(&["another"], true));
            eventually("the earlier call is under way", Duration::from_secs(5), || {
                proxy.losses.held.load(Ordering::SeqCst) == held + 1
            });
            gives_up_at.store(held + 2, Ordering::SeqCst);
            assert_eq!(removal(&store).unwrap_err().kind(), ErrorKind::Interrupted, "{name}");
            gives_up_at.store(u64::MAX, Ordering::SeqCst);
            assert_eq!(put(&store, "k", 3000).unwrap(), PutOutcome::Existed, "{name}");

            let answered = proxy.losses.seen.load(Ordering::SeqCst);
            proxy.losses.holding.store(false, Ordering::SeqCst);
            assert_eq!(earlier.join().unwrap().unwrap(), [RemoveOutcome::Missing], "{name}");
            eventually("the master has answered the late request too", Duration::from_secs(5), || {
                proxy.losses.seen.load(Ordering::SeqCst) == answered + 2
            });
            assert_eq!(store.get(b"k").unwrap(), Some(value("k", 3000)), "{name}");
        });
    }
}

#[test]
fn a_view_that_was_interrupted_on_its_way_holds_nothing() {
    for on_its_way_back in [false, true] {
        let cluster = Cluster::start_with(|settings| settings.unix_socket = false);
        let (proxy, store, gives_up_at) = impatient(&cluster, 8 * MIB);
        put(&store, "k", 5 << 20).unwrap();
        let losses = &proxy.losses;
        let hold = if on_its_way_back { &losses.hold_replies } else { &losses.hold };
        losses.holding.store(true, Ordering::SeqCst);
        hold.store(1, Ordering::SeqCst);
        gives_up_at.store(1, Ordering::SeqCst);
        assert_eq!(store.view(&["k"]).remove(0).unwrap_err().kind(), ErrorKind::Interrupted);
        gives_up_at.store(u64::MAX, Ordering::SeqCst);
        // Its space is free once its object is gone.
        store.remove(&["k"], true).unwrap();
        losses.holding.store(false, Ordering::SeqCst);
        let name = format!("another object is stored; {on_its_way_back}");
        eventually(&name, Duration::from_secs(3), || put(&store, "l", 5 << 20).is_ok());
    }
}

#[test]
fn a_view_that_began_while_a_list_of_the_others_was_on_its_way_is_held() {
    let cluster = Cluster::start_with(|settings| settings.unix_socket = false);
    let owner = cluster.store(8 * MIB);
    put(&owner, "k", 3 << 20).unwrap();
    let proxy = Proxy::to(cluster.address());
    let mut options = cluster.options(0);
    options.master = proxy.address.clone();
    let reader = Store::connect(options).unwrap();
    // One that never changed anything has nothing to come back for.
    reader.remove(&["missing"], true).unwrap();
    proxy.losses.holding.store(true, Ordering::SeqCst);
    proxy.losses.hold_resumes.store(1, Ordering::SeqCst);
    proxy.losses.cut_anchors.store(1, Ordering::SeqCst);
    eventually("the list is on its way", Duration::from_secs(3), || proxy.losses.held.load(Ordering::SeqCst) == 1);
    let view = reader.view(&["k"]).remove(0).unwrap().unwrap();
    assert!(!view.is_private_copy());
    // With this one the master hears that the client has all answers before it.
    reader.remove(&["missing"], true).unwrap();
    proxy.losses.holding.store(false, Ordering::SeqCst);
    eventually("the list has come", Duration::from_secs(3), || cluster.metric("mooncake_sessions_resumed_total") == 1);
    assert_eq!(cluster.metric("mooncake_pins"), 1);
    // What holds the space of the view holds it to its end, and no longer.
    reader.remove(&["k"], true).unwrap();
    assert_eq!(put(&owner, "l", 6 << 20).unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(view[..] == value("k", 3 << 20)[..]);
    drop(view);
    eventually("its end is told", Duration::from_secs(3), || put(&owner, "l", 6 << 20).is_ok());
}

#[test]
fn a_put_whose_answer_never_came_does_not_keep_its_key() {
    let (cluster, proxy, store) = proxied();
    put(&store, "warm", 100).unwrap();
    proxy.losses.frozen.store(true, Ordering::SeqCst);
    // What was being carried just then arrives: a pong after the call began would mean that the master lives.
    std::thread::sleep(Duration::from_millis(100));
    let error = put(&store, "k", 3000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MasterUnreachable, "{error}");
    proxy.losses.frozen.store(false, Ordering::SeqCst);
    // The request was in flight and is carried out now; its placement is given up again.
    let other = cluster.store(0);
    eventually("another client's put of the key is stored", Duration::from_secs(3), || {
        matches!(put(&other, "k", 3000), Ok(PutOutcome::Stored { .. }))
    });
    eventually("the first client works again", Duration::from_secs(1), || store.health() == Health::Ok);
    assert_eq!(store.get(b"k").unwrap(), Some(value("k", 3000)));
}

#[test]
fn a_mount_whose_answer_never_came_leaves_no_segment_without_memory() {
    let (cluster, proxy, store) = proxied();
    put(&store, "k", 3000).unwrap();
    let answered = proxy.losses.seen.load(Ordering::SeqCst);
    proxy.losses.frozen.store(true, Ordering::SeqCst);
    // A pong that was past the door by then shows the master alive.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(store.mount_memory(8 * MIB).unwrap_err().kind(), ErrorKind::MasterUnreachable);
    proxy.losses.frozen.store(false, Ordering::SeqCst);
    // The request was in flight, and what would have taken it back was not.
    eventually("the master has answered the late request", Duration::from_secs(2), || {
        proxy.losses.seen.load(Ordering::SeqCst) > answered
    });
    eventually("it knows the one segment that there is", Duration::from_secs(2), || {
        cluster.metric("mooncake_segments_live") == 1
    });
    eventually("the client is back", Duration::from_secs(2), || store.health() == Health::Ok);
    assert_eq!(store.get(b"k").unwrap(), Some(value("k", 3000)));
    store.mount_memory(8 * MIB).unwrap();
    assert_eq!(cluster.metric("mooncake_segments_live"), 2);
}

#[test]
fn a_frozen_master_costs_one_deadline_and_loses_nothing() {
    let (_cluster, proxy, store) = proxied();
    put(&store, "k", 3000).unwrap();
    proxy.losses.frozen.store(true, Ordering::SeqCst);
    // A pong that was past the door by then shows the master alive.
    std::thread::sleep(Duration::from_millis(100));
    let started = Instant::now();
    assert_eq!(store.exists(&["k"]).unwrap_err().kind(), ErrorKind::MasterUnreachable);
    assert!(started.elapsed() < Duration::from_millis(800), "{:?}", started.elapsed());
    let started = Instant::now();
    for _ in 0..100 {
        assert!(store.exists(&["k"]).is_err());
    }
    assert!(started.elapsed() < Duration::from_millis(50), "{:?}", started.elapsed());
    // Long enough for the master to call the session away.
    std::thread::sleep(Duration::from_millis(2_500));
    proxy.losses.frozen.store(false, Ordering::SeqCst);
    eventually("it is there again", Duration::from_secs(1), || store.exists(&["k"]).is_ok_and(|found| found[0]));
    assert_eq!(store.get(b"k").unwrap(), Some(value("k", 3000)));
}

/// A put by a client of the pool whose first reply is held until `meanwhile` is through.
fn put_with_a_break(
    store: &Store,
    losses: &Losses,
    key: &str,
    meanwhile: impl FnOnce(),
) -> Result<PutOutcome, StoreError> {
    losses.holding.store(true, Ordering::SeqCst);
    losses.hold_replies.store(1, Ordering::SeqCst);
    let held = losses.held.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        let put = scope.spawn(|| put(store, key, 3000));
        eventually("the key is reserved", Duration::from_secs(5), || losses.held.load(Ordering::SeqCst) == held + 1);
        meanwhile();
        losses.holding.store(false, Ordering::SeqCst);
        put.join().unwrap()
    })
}

#[test]
fn a_put_whose_end_could_not_be_delivered_does_not_keep_its_key() {
    let (cluster, proxy, store) = proxied();
    put(&store, "warm", 100).unwrap();
    let error = put_with_a_break(&store, &proxy.losses, "k", || proxy.losses.no_calls.store(true, Ordering::SeqCst));
    let error = error.unwrap_err();
    let other = cluster.store(0);
    assert_eq!(put(&other, "k", 3000).unwrap_err().kind(), ErrorKind::Busy, "{error}");
    proxy.losses.no_calls.store(false, Ordering::SeqCst);
    let started = Instant::now();
    assert_eq!(put(&other, "k", 3000).unwrap(), PutOutcome::Stored { replicas: 1 }, "{:?}", started.elapsed());
    assert_eq!(store.get(b"k").unwrap(), Some(value("k", 3000)));
    eventually("its space is back", Duration::from_secs(2), || cluster.metric("mooncake_quarantined_bytes") == 0);
}

#[test]
fn a_put_whose_end_was_done_though_no_reply_came_keeps_what_it_stored() {
    let (cluster, proxy, store) = proxied();
    put(&store, "warm", 100).unwrap();
    let seen = proxy.losses.seen.load(Ordering::SeqCst) as i64;
    proxy.losses.lose_from.store(seen + 1, Ordering::SeqCst);
    put(&store, "k", 3000).unwrap_err();
    let other = cluster.store(0);
    assert_eq!(other.get(b"k").unwrap(), Some(value("k", 3000)));
    proxy.losses.lose_from.store(-1, Ordering::SeqCst);
    let seen = proxy.losses.seen.load(Ordering::SeqCst);
    eventually("it was given up", Duration::from_secs(3), || proxy.losses.seen.load(Ordering::SeqCst) > seen);
    assert_eq!(other.get(b"k").unwrap(), Some(value("k", 3000)));
    assert_eq!(put(&other, "k", 3000).unwrap(), PutOutcome::Existed);
}

#[test]
fn a_session_whose_end_was_done_though_no_reply_came_is_ended_whatever_was_put_since() {
    let (_cluster, proxy, store) = proxied();
    let bytes = value("k", 3_000);
    store.start_put_sessions(&["k"], &[3_000], &PutOptions::default()).remove(0).unwrap();
    let ranges = vec![WriteRange { offset: 0, source: Source::new(&bytes) }];
    store.write_in_sessions(&[PutRanges { key: b"k", ranges }]).remove(0).unwrap();
    let seen = proxy.losses.seen.load(Ordering::SeqCst) as i64;
    proxy.losses.lose_from.store(seen, Ordering::SeqCst);
    store.end_put_sessions(&["k"]).remove(0).unwrap_err();
    proxy.losses.lose_from.store(-1, Ordering::SeqCst);
    // More than the master remembers of a store's.
    let names: Vec<String> = (0..1_100).map(|n| format!("other{n}")).collect();
    let piece = [Source::new(&bytes[..100])];
    let items: Vec<PutItem<'_>> = names.iter().map(|name| PutItem { key: name.as_bytes(), value: &piece }).collect();
    eventually("the store is back", Duration::from_secs(5), || store.exists(&["k"]).is_ok());
    assert!(store.put_batch(&items, &PutOptions::default()).iter().all(Result::is_ok));
    store.end_put_sessions(&["k"]).remove(0).unwrap();
    assert_eq!(store.get(b"k").unwrap(), Some(bytes));
}

#[test]
fn a_put_that_ends_while_nobody_can_see_its_owner_is_no_success() {
    let cluster = Cluster::start_with(|settings| {
        settings.unix_socket = false;
        settings.core.away_ms = 300;
        settings.core.full_wait_ms = 200;
    });
    let (owners, writers) = (Proxy::to(cluster.address()), Proxy::to(cluster.address()));
    let mut options = cluster.options(8 * MIB);
    options.master = owners.address.clone();
    let _owner = Store::connect(options.clone()).unwrap();
    (options.master, options.global_segment_size) = (writers.address.clone(), 0);
    let writer = Store::connect(options).unwrap();
    let reader = cluster.store(0);
    put(&writer, "warm", 3000).unwrap();
    let outcome = put_with_a_break(&writer, &writers.losses, "k", || {
        owners.losses.frozen.store(true, Ordering::SeqCst);
        eventually("its owner is away", Duration::from_secs(3), || reader.exists(&["warm"]).unwrap() == [false]);
    });
    let found = reader.get(b"k").unwrap();
    assert!(outcome.is_err() || found.is_some(), "{outcome:?} and yet {found:?}");

    owners.losses.frozen.store(false, Ordering::SeqCst);
    eventually("its owner is back", Duration::from_secs(3), || reader.exists(&["warm"]).unwrap() == [true]);
    assert!(!reader.exists(&["k"]).unwrap()[0], "what was no success is not there");
    assert_eq!(put(&writer, "k", 3000).unwrap(), PutOutcome::Stored { replicas: 1 });
    assert_eq!(reader.get(b"k").unwrap(), Some(value("k", 3000)));
    eventually("no space is lost", Duration::from_secs(2), || cluster.metric("mooncake_quarantined_bytes") == 0);
}

#[test]
fn a_batch_of_keys_whose_stamps_are_wrong_is_reported_with_a_few_messages() {
    let (cluster, proxy, store) = proxied_with(0);
    let (size, count) = (15 * MIB, 3_000);
    let owner = cluster.store(size);
    let names: Vec<String> = (0..count).map(|n| format!("k{n}")).collect();
    let bytes = value("all", 1500);
    let piece = [Source::new(&bytes)];
    let items: Vec<PutItem<'_>> = names.iter().map(|name| PutItem { key: name.as_bytes(), value: &piece }).collect();
    let stored = |store: &Store| {
        let outcomes = store.put_batch(&items, &PutOptions::default());
        outcomes.into_iter().filter(|outcome| matches!(outcome, Ok(PutOutcome::Stored { .. }))).count()
    };
    assert_eq!(stored(&owner), count);
    bit_flip::stamps(size).clear();

    let seen = proxy.losses.seen.load(Ordering::SeqCst);
    let mut into: Vec<Vec<u8>> = names.iter().map(|_| vec![0; 1500]).collect();
    let mut gets: Vec<GetInto<'_>> = names
        .iter()
        .zip(&mut into)
        .map(|(name, into)| GetInto { key: name.as_bytes(), destinations: vec![Destination::new(into)] })
        .collect();
    assert!(store.get_into(&mut gets).into_iter().all(|got| got.unwrap().is_none()));
    eventually("none of them exists any more", Duration::from_secs(5), || {
        !owner.exists(&names).unwrap().contains(&true)
    });
    let asked = proxy.losses.seen.load(Ordering::SeqCst) - seen;
    assert!(asked <= 10, "{asked} requests");
    assert_eq!(stored(&owner), count);
}

#[test]
fn a_read_that_was_overtaken_is_no_report() {
    let (cluster, proxy, reader) = proxied_with(0);
    let owner = cluster.store(8 * MIB);
    put(&owner, "k", 300_000).unwrap();
    assert!(reader.get(b"k").unwrap().is_some());
    proxy.losses.holding.store(true, Ordering::SeqCst);
    proxy.losses.hold_replies.store(1, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let late = scope.spawn(|| reader.get(b"k").unwrap());
        eventually("it is looked up", Duration::from_secs(5), || proxy.losses.held.load(Ordering::SeqCst) == 1);
        owner.remove(&["k"], true).unwrap();
        for n in 0..40 {
            put(&owner, &format!("fill{n}"), 300_000).unwrap();
        }
        put(&owner, "k", 300_000).unwrap();
        proxy.losses.holding.store(false, Ordering::SeqCst);
        assert!(late.join().unwrap() == Some(value("k", 300_000)), "the second look-up finds it");
    });
    assert_eq!(cluster.metric("mooncake_bad_replica_reports_total"), 0);
}

/// A master without a log behind a proxy, and its only client: the numbers of sessions and placements begin anew with
/// each start of the master.
fn forgetful(hides_positions: bool) -> (Cluster, Proxy, Store) {
    let cluster = Cluster::start_with(|settings| {
        settings.unix_socket = false;
        settings.wal = Wal::Off;
    });
    let proxy = Proxy::to(cluster.address());
    proxy.losses.hide_positions.store(hides_positions, Ordering::SeqCst);
    let mut options = cluster.options(64 * MIB);
    options.master = proxy.address.clone();
    options.lookup_timeout = Duration::from_secs(10);
    let store = Store::connect(options).unwrap();
    put(&store, "warm", 3000).unwrap();
    proxy.losses.holding.store(true, Ordering::SeqCst);
    (cluster, proxy, store)
}

/// What is written in the new session is not what an older put ends or gives up, although it has the same numbers where
/// the master does not believe that they are in use (`hides_positions`).
fn a_late_word(hides_positions: bool, ends: bool) {
    let (mut cluster, proxy, store) = forgetful(hides_positions);
    let losses = &proxy.losses;
    let held = |count: u64, what: &str| {
        eventually(what, Duration::from_secs(8), || losses.held.load(Ordering::SeqCst) >= count);
    };
    std::thread::scope(|scope| {
        let (hold, pass) = if ends { (&losses.hold, 1) } else { (&losses.hold_replies, 0) };
        losses.pass.store(pass, Ordering::SeqCst);
        hold.store(1, Ordering::SeqCst);
        let first = scope.spawn(|| put(&store, "first", 3000));
        held(1, "the first put has its placement");
        // What it says again in the new session lies on the way, too.
        let late = if ends { 2 } else { 1 };
        losses.hold.store(late - 1, Ordering::SeqCst);
        cluster.stop_master();
        cluster.start_master();
        held(late, "the first put goes on in the new session");
        eventually("the memory is there", Duration::from_secs(5), || cluster.metric("mooncake_segments_live") == 1);
        put(&store, "warm too", 3000).unwrap();
        losses.pass.store(1, Ordering::SeqCst);
        losses.hold.store(1, Ordering::SeqCst);
        let second = scope.spawn(|| put(&store, "second", 3000));
        held(late + 1, "the second put is about to end");
        losses.let_go.store(late, Ordering::SeqCst);
        let first = first.join().unwrap();
        assert!(!store.exists(&["second"]).unwrap()[0], "nobody has ended it");
        let error = put(&cluster.store(0), "second", 3000).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "nobody has given it up: {error}");

        losses.holding.store(false, Ordering::SeqCst);
        assert_eq!(second.join().unwrap().unwrap(), PutOutcome::Stored { replicas: 1 });
        assert_eq!(store.get(b"second").unwrap(), Some(value("second", 3000)));
        // A success is one in the new session.
        assert_eq!(first.unwrap(), PutOutcome::Stored { replicas: 1 });
        assert_eq!(store.get(b"first").unwrap(), Some(value("first", 3000)));
    });
}

#[test]
fn the_end_of_a_put_ends_nothing_of_a_later_session() {
    a_late_word(true, true);
}

#[test]
fn a_placement_that_is_given_up_is_none_of_a_later_session() {
    a_late_word(true, false);
}

#[test]
fn numbers_that_another_log_gave_out_are_not_given_out_again() {
    a_late_word(false, true);
    a_late_word(false, false);
}
