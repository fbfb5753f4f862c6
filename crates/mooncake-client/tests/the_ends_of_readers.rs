//! A reader that gives no memory, in a pid namespace of its own as a container
//! has one: the master cannot watch its process. The owner of what it maps can.

use std::process::Command;
use std::time::Duration;

use mooncake_client::Store;
use mooncake_test_support::ChildProcess;
use mooncake_test_support::child_process::{asked, say};
use mooncake_test_support::test_name;

use crate::child;
use crate::cluster::{Cluster, MIB, eventually, put};

/// Starts a program as the first process of a pid namespace with its own /proc.
const APART: [&str; 5] = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];

/// Not a test by itself: what the reader does.
#[test]
fn reader() {
    let Some(options) = child::options(0) else { return };
    let store = Store::connect(options).unwrap();
    say(std::process::id());
    let mut views = Vec::new();
    for key in asked() {
        let view = store.view(&[key]).remove(0).unwrap().expect("it is there");
        say(if view.is_private_copy() { "copied" } else { "viewed" });
        views.push(view);
    }
}

/// A reader that `unshare` takes along when it is killed. None where no pid namespace can be had.
fn reader_apart(cluster: &Cluster) -> Option<ChildProcess> {
    let usable = Command::new(APART[0]).args(&APART[1..]).arg("true").output();
    if !usable.as_ref().is_ok_and(|done| done.status.success()) {
        eprintln!("skipped: no pid namespace of one's own: {usable:?}");
        return None;
    }
    let (reader, pid) = child::start_by(&APART, cluster, &test_name!("reader"));
    assert_eq!(pid, "1", "the first of its namespace");
    Some(reader)
}

/// For a value that fits only where the viewed one is.
fn there_is_room(owner: &Store) -> bool {
    put(owner, "b", 24 << 20).is_ok()
}

#[test]
fn the_pin_of_a_killed_reader_apart_is_given_back() {
    let cluster = Cluster::start();
    let owner = cluster.store(32 * MIB);
    put(&owner, "a", 14 << 20).unwrap();
    let Some(mut reader) = reader_apart(&cluster) else { return };
    assert_eq!(reader.ask("a"), "viewed");
    assert!(!there_is_room(&owner), "a view holds space");
    reader.kill();
    eventually("the room is back", Duration::from_secs(3), || there_is_room(&owner));
}

#[test]
fn the_pin_of_a_reader_that_was_killed_while_the_master_was_away_is_given_back() {
    let mut cluster = Cluster::start();
    let owner = cluster.store(32 * MIB);
    put(&owner, "a", 14 << 20).unwrap();
    let Some(mut reader) = reader_apart(&cluster) else { return };
    assert_eq!(reader.ask("a"), "viewed");
    cluster.stop_master();
    reader.kill();
    cluster.start_master();
    eventually("the room is back", Duration::from_secs(8), || there_is_room(&owner));
}
