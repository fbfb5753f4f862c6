//! The library's threads wait where nothing happens, whatever has ended before.

mod support;

use std::io::Write;
use std::time::{Duration, Instant};

use mooncake_memory::Source;
use mooncake_segment::Paths;
use support::*;

#[test]
fn other_process() {
    play_role();
}

/// How long the threads of this name have run.
fn spent(name: &str) -> Duration {
    let mut nanoseconds = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        if read("comm").trim() == name {
            nanoseconds += read("schedstat").split(' ').next().unwrap().parse::<u64>().unwrap();
        }
    }
    Duration::from_nanos(nanoseconds)
}

#[test]
fn an_end_that_has_been_heard_of_wakes_nobody_again() {
    // A view of a segment whose owner is dead keeps its watcher.
    let (mut dead, address) = start_owner(MIB);
    let (links, noticed) = links(Paths::ALL);
    let link = links.link(&address, &soon()).unwrap();
    link.write(rid(1, 1), 0, &[Source::new(b"x")], &soon()).unwrap();
    let _view = link.view(rid(1, 1), 0, 1, None).unwrap().unwrap();
    dead.kill();
    assert!(matches!(noticed.recv_timeout(Duration::from_secs(5)), Ok(Noticed::OwnerGone(_))));
    // An owner with a peer that has hung up and lives, one that has ended, and a fence that it was woken for.
    let owner = Owner::new(MIB);
    let mut peer = attached_by_hand(&owner.address(), 1);
    peer.write_all(&attach_frame(3, 0)).unwrap();
    assert_eq!(frame_by_hand(&mut peer)[4], 4, "it may write");
    let mut ended = start_writer(&owner.address(), mooncake_segment::Path::SharedMemory);
    assert_eq!(ended.ask("attach-to-write"), "attached");
    assert!(!owner.fence(rid(1, 1), 0, 4096));
    drop(peer);
    ended.kill();
    let until = Instant::now() + Duration::from_secs(5);
    while owner.server.attached() > 1 {
        assert!(Instant::now() < until, "the end is noticed");
        std::thread::sleep(Duration::from_millis(1));
    }
    let before = ["mooncake-watch", "mooncake-door"].map(spent);
    assert!(before.iter().all(|time| !time.is_zero()), "both are there: {before:?}");
    std::thread::sleep(Duration::from_millis(400));
    let after = ["mooncake-watch", "mooncake-door"].map(spent);
    assert!(after.iter().zip(before).all(|(after, before)| *after - before < Duration::from_millis(20)), "{after:?}");
}
