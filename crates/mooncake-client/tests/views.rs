//! Views keep their bytes through everything.

use std::time::{Duration, Instant};

use mooncake_client::{Cause, ErrorKind, Store, View};

use crate::cluster::{Cluster, MIB, eventually, put, value};

#[test]
fn a_view_survives_remove_eviction_and_close() {
    let cluster = Cluster::start();
    let owner = cluster.store(16 * MIB);
    let reader = cluster.store(0);
    put(&owner, "a", 2 << 20).unwrap();
    let seen = value("a", 2 << 20);
    let view = reader.view(&["a"]).remove(0).unwrap().unwrap();
    assert!(!view.is_private_copy());
    reader.remove(&["a"], true).unwrap();
    for n in 0..48 {
        put(&owner, &format!("fill{n}"), 1 << 20).unwrap();
        assert!(view[..] == seen[..], "after {n} puts");
    }
    reader.close();
    assert_eq!(reader.get(b"fill47").unwrap_err().kind(), ErrorKind::Closed);
    for n in 0..48 {
        put(&owner, &format!("more{n}"), 1 << 20).unwrap();
        assert!(view[..] == seen[..], "after {n} puts");
    }
    // The owner itself goes, and a hole is punched around the view.
    owner.close();
    std::thread::sleep(Duration::from_millis(200));
    assert!(view[..] == seen[..]);
    drop(view);
}

#[test]
fn the_space_of_a_view_comes_back_with_its_end() {
    let cluster = Cluster::start();
    let owner = cluster.store(8 * MIB);
    let reader = cluster.store(0);
    put(&owner, "a", 5 << 20).unwrap();
    let view = reader.view(&["a"]).remove(0).unwrap().unwrap();
    reader.remove(&["a"], true).unwrap();
    assert_eq!(put(&owner, "b", 5 << 20).unwrap_err().kind(), ErrorKind::NoSpace);
    drop(view);
    eventually("the space is there again", Duration::from_secs(1), || put(&owner, "b", 5 << 20).is_ok());
}

#[test]
fn the_space_of_a_view_comes_back_after_its_store_was_closed() {
    let cluster = Cluster::start();
    let owner = cluster.store(8 * MIB);
    let reader = cluster.store(0);
    put(&owner, "a", 5 << 20).unwrap();
    let view = reader.view(&["a"]).remove(0).unwrap().unwrap();
    drop(reader);
    owner.remove(&["a"], true).unwrap();
    assert_eq!(put(&owner, "b", 5 << 20).unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(view[..] == value("a", 5 << 20)[..]);
    drop(view);
    eventually("the space is there again", Duration::from_secs(1), || put(&owner, "b", 5 << 20).is_ok());
}

#[test]
fn a_put_into_a_pool_full_of_views_waits_for_their_end_and_else_names_who_holds_them() {
    let cluster = Cluster::start();
    let owner = cluster.store(16 * MIB);
    let reader = cluster.store(0);
    let viewed = |round: u32| -> Vec<View> {
        let names: Vec<String> = (0..3).map(|n| format!("{round}/{n}")).collect();
        for name in &names {
            put(&owner, name, 5 << 20).unwrap();
        }
        reader.view(&names).into_iter().map(|view| view.unwrap().unwrap()).collect()
    };
    let views = viewed(0);
    let started = Instant::now();
    let error = put(&owner, "refused", 5 << 20).unwrap_err();
    assert!(started.elapsed() > Duration::from_millis(900), "{error} after {:?}", started.elapsed());
    assert!(matches!(error.cause(), Cause::NoSpace { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("15728640 bytes are under views of") && text.contains(reader.hostname()), "{text}");

    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| put(&owner, "waited", 5 << 20));
        // Somebody who needs less does not wait behind it.
        put(&owner, "small", 1000).unwrap();
        drop(views);
        waiting.join().unwrap().unwrap();
    });
    for round in 1..6 {
        let views = viewed(round);
        drop(views);
        // The very first one, whether the master has heard of the end of the views or not.
        put(&owner, &format!("first{round}"), 5 << 20).unwrap();
    }
}

#[test]
fn views_beyond_the_local_buffer_are_private_copies() {
    let cluster = Cluster::start();
    let owner = cluster.store(16 * MIB);
    let mut options = cluster.options(0);
    options.local_buffer_size = 3 * MIB;
    let reader = Store::connect(options).unwrap();
    for key in ["a", "b"] {
        put(&owner, key, 2 << 20).unwrap();
    }
    let mut views = reader.view(&["a", "missing", "b"]);
    let second = views.remove(2).unwrap().unwrap();
    assert!(views.remove(1).unwrap().is_none());
    let first = views.remove(0).unwrap().unwrap();
    assert!(!first.is_private_copy() && second.is_private_copy());
    assert!(first[..] == value("a", 2 << 20)[..] && second[..] == value("b", 2 << 20)[..]);
    drop(first);
    let third = reader.view(&["b"]).remove(0).unwrap().unwrap();
    assert!(!third.is_private_copy());

    let mut options = cluster.options(0);
    options.shared_views = false;
    let copying = Store::connect(options).unwrap();
    assert!(copying.view(&["a"]).remove(0).unwrap().unwrap().is_private_copy());
}

/// A hello has 1 MiB, in which each view has eight bytes.
#[test]
fn views_beyond_what_a_hello_can_list_are_private_copies() {
    const MOST: usize = 65_536;
    let mut cluster = Cluster::start();
    let owner = cluster.store(8 * MIB);
    let reader = cluster.store(0);
    put(&owner, "a", 16).unwrap();
    // In calls that a busy machine answers in time, too.
    let calls = [4096; MOST / 4096].into_iter().chain([10]);
    let views = calls.flat_map(|views| reader.view(&vec!["a"; views]));
    let all: Vec<View> = views.map(|view| view.unwrap().unwrap()).collect();
    assert_eq!(all.iter().filter(|view| view.is_private_copy()).count(), 10);
    cluster.stop_master();
    cluster.start_master();
    eventually("the client comes back with all of them", Duration::from_secs(5), || {
        reader.exists(&["a"]).is_ok_and(|found| found[0])
    });
    assert_eq!(cluster.metric("mooncake_pins"), MOST as u64);
    drop(all);
    eventually("they have ended", Duration::from_secs(5), || cluster.metric("mooncake_pins") == 0);
    assert!(!reader.view(&["a"]).remove(0).unwrap().unwrap().is_private_copy());
}
