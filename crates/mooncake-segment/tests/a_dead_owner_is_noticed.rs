//! The end of an owner's process is noticed at once, its memory goes back to
//! the host, and views last.

mod support;

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use mooncake_ids::SegmentUuid;
use mooncake_memory::{Destination, Source, Verify};
use mooncake_os::{Deadline, ProcessIdentity};
use mooncake_segment::{Path, Paths, TransferError};
use support::*;

#[test]
fn other_process() {
    play_role();
}

/// Bytes of memory that data memfds of a size hold that this process has open: the larger figure, if several.
fn held_bytes(size: u64) -> u64 {
    let mut held = 0;
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        if target.to_string_lossy().contains("memfd:")
            && let Ok(stat) = rustix::fs::stat(entry.path())
            && stat.st_size == size as i64
        {
            held = held.max(stat.st_blocks as u64 * 512);
        }
    }
    held
}

/// Waits until so many are held.
fn holds(size: u64, bytes: std::ops::Range<u64>) {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        let held = held_bytes(size);
        if bytes.contains(&held) {
            return;
        }
        assert!(Instant::now() < until, "{held} bytes are held instead of {bytes:?}");
        std::thread::yield_now();
    }
}

#[test]
fn a_killed_owner_is_noticed_within_200_ms_and_its_memory_given_back_under_live_views() {
    // No other test of this binary has a segment of this size: it is counted by size.
    let (mut owner, address) = start_owner(16 * MIB);
    let (links, noticed) = links(Paths::ALL);
    let link = links.link(&address, &soon()).unwrap();
    assert_eq!(link.path(), Path::SharedMemory, "{}", link.reason());
    let data = pattern(MIB, 5);
    let crc = link.write(rid(1, 1), 0, &[Source::new(&data)], &soon()).unwrap();
    link.write(rid(1, 2), 4 * MIB, &[Source::new(&pattern(8 * MIB, 6))], &soon()).unwrap();
    let view = link.view(rid(1, 1), 0, MIB, Some(crc)).unwrap().unwrap();
    let other = link.view(rid(1, 2), 4 * MIB, MIB, None).unwrap().unwrap();
    assert!(held_bytes(16 * MIB) >= 9 * MIB);

    let killed = Instant::now();
    owner.kill();
    match noticed.recv_timeout(Duration::from_secs(5)).unwrap() {
        Noticed::OwnerGone(uuid) => assert_eq!(uuid, address.uuid),
        other => panic!("{other:?}"),
    }
    assert!(killed.elapsed() < Duration::from_millis(200), "{:?}", killed.elapsed());
    assert!(link.write(rid(1, 3), 0, &[Source::new(b"x")], &soon()).is_err());

    // The master says what is pinned; own views are kept whatever it says.
    links.forget(address.uuid, &[(0, MIB)], FIRST);
    holds(16 * MIB, 2 * MIB..3 * MIB);
    assert_eq!(*view, data);
    assert_eq!(*other, pattern(8 * MIB, 6)[..MIB as usize]);
    let e = link.read(rid(1, 1), 0, &mut [Destination::new(&mut [0])], None, &soon()).unwrap_err();
    assert!(matches!(e, TransferError::Gone { .. }), "{e}");

    drop(other);
    holds(16 * MIB, MIB..2 * MIB);
    assert_eq!(*view, data, "views last");
    links.close();
    assert_eq!(*view, data, "views last");
    drop(link);
    drop(view);
    assert!(noticed.try_recv().is_err(), "reported once");
}

#[test]
fn what_only_another_epochs_master_may_know_of_is_kept_when_the_owner_dies() {
    // No other test of this binary has a segment of this size: it is counted by size.
    let size = 12 * MIB;
    let (mut owner, address) = start_owner(size);
    let (links, noticed) = links(Paths::ALL);
    let link = links.link(&address, &soon()).unwrap();
    link.write(rid(1, 1), 0, &[Source::new(&pattern(2 * MIB, 5))], &soon()).unwrap();
    let mut peer = start_writer(&address, Path::SharedMemory);
    assert_eq!(peer.ask(format!("view {} 0 {MIB}", rid(1, 1).0)), "viewed");
    assert_eq!(owner.ask("take-epoch 2 8"), "taken by 0");
    let Noticed::Epoch(question) = noticed.recv_timeout(Duration::from_secs(5)).unwrap() else { panic!() };
    owner.kill();
    assert!(matches!(noticed.recv_timeout(Duration::from_secs(5)), Ok(Noticed::OwnerGone(_))));
    // This store's master knows nothing of the peer's view.
    links.forget(address.uuid, &[], FIRST);
    std::thread::sleep(Duration::from_millis(200));
    assert!(held_bytes(size) >= 2 * MIB, "{} bytes are held", held_bytes(size));
    // The master of the epoch that the owner asks for does.
    let epoch = question.epoch();
    question.confirm();
    links.forget(address.uuid, &[(0, MIB)], epoch);
    holds(size, MIB..2 * MIB);
}

#[test]
fn a_view_in_another_process_keeps_its_bytes_when_this_one_drops_its_own() {
    let (mut owner, address) = start_owner(8 * MIB);
    let (links, noticed) = links(Paths::ALL);
    let link = links.link(&address, &soon()).unwrap();
    let mut peer = start_writer(&address, Path::SharedMemory);
    assert!(peer.ask(format!("write {} 0 {MIB}", rid(1, 1).0)).starts_with("ok"));
    let expected = pattern(MIB, rid(1, 1).0 as u8);
    assert_eq!(peer.ask(format!("view {} 0 {MIB}", rid(1, 1).0)), "viewed");
    let mine = link.view(rid(1, 1), 0, MIB, None).unwrap().unwrap();
    let also_mine = link.view(rid(1, 1), 0, MIB, None).unwrap().unwrap();
    owner.kill();
    noticed.recv_timeout(Duration::from_secs(5)).unwrap();
    links.forget(address.uuid, &[(0, MIB)], FIRST);
    assert_eq!(peer.ask(format!("forget 0 {MIB}")), "forgotten");
    assert_eq!(*mine, *expected);
    assert_eq!(peer.ask("unview"), "unviewed");
    // The peer still maps the segment, so nothing of it was punched.
    assert_eq!(*mine, *expected);
    drop(mine);
    assert_eq!(*also_mine, *expected);
}

#[test]
fn views_last_whoever_drops_others_and_in_whatever_order() {
    let (mut owner, address) = start_owner(4 * MIB);
    let (links, noticed) = links(Paths::ALL);
    let link = links.link(&address, &soon()).unwrap();
    let mut peer = start_writer(&address, Path::SharedMemory);
    for i in 0..3 {
        assert!(peer.ask(format!("write {} {} {MIB}", rid(1, i + 1).0, i * MIB)).starts_with("ok"));
    }
    let view = |i: u64| link.view(rid(1, i + 1), i * MIB, MIB, None).unwrap().unwrap();
    let (dropped, kept) = (view(0), view(1));
    let expected = pattern(MIB, rid(1, 2).0 as u8);
    assert_eq!(peer.ask(format!("view {} {} {MIB}", rid(1, 3).0, 2 * MIB)), "viewed");
    owner.kill();
    noticed.recv_timeout(Duration::from_secs(5)).unwrap();
    links.forget(address.uuid, &[(0, MIB), (MIB, MIB), (2 * MIB, MIB)], FIRST);
    assert_eq!(peer.ask(format!("forget 0 {}", 3 * MIB)), "forgotten");
    // The peer is still there, which must not make this process invisible to it.
    drop(dropped);
    assert_eq!(peer.ask("unview"), "unviewed");
    assert!(*kept == *expected, "a pinned, verified view changed");
    // And the other way about: the last one left keeps its own.
    drop(peer);
    assert!(*kept == *expected);
}

#[test]
fn a_peer_that_hears_that_a_segment_is_gone_takes_nothing_from_an_owner_that_lives() {
    let owner = Owner::new(2 * MIB);
    let (links, _noticed) = links(Paths::only(Path::SharedMemory));
    let link = links.link(&owner.address(), &soon()).unwrap();
    let data = pattern(MIB, 5);
    let crc = link.write(rid(1, 1), 0, &[Source::new(&data)], &soon()).unwrap();
    // Its owner's own view, which announces itself to nobody, and a peer's.
    let owners = owner.memory.view_mapping().unwrap().view(rid(1, 1), 0, MIB, Verify::Crc(crc)).unwrap();
    let mine = link.view(rid(1, 1), 0, MIB, Some(crc)).unwrap().unwrap();
    links.forget(owner.memory.uuid(), &[], FIRST);
    drop(mine);
    drop(link);
    // The owner learns of the unmapping behind everything that the peer has done about it.
    let until = Instant::now() + Duration::from_secs(5);
    while owner.server.attached() > 0 {
        assert!(Instant::now() < until, "the segment is still mapped");
        std::thread::yield_now();
    }
    assert!(!owner.memory.mapping().is_given_back());
    assert!(*owners == *data, "the owner's view changed");
}

#[test]
fn memory_that_was_forgotten_first_goes_back_when_the_owner_dies_and_each_view_ends() {
    // No other test of this binary has a segment of this size: it is counted by size.
    let size = 10 * MIB;
    let (mut owner, address) = start_owner(size);
    let (links, _noticed) = links(Paths::ALL);
    let link = links.link(&address, &soon()).unwrap();
    let mut views = Vec::new();
    for i in 0..4 {
        link.write(rid(1, i + 1), i * MIB, &[Source::new(&pattern(MIB, 5))], &soon()).unwrap();
        views.push(link.view(rid(1, i + 1), i * MIB, MIB, None).unwrap().unwrap());
    }
    link.write(rid(1, 9), 5 * MIB, &[Source::new(&pattern(5 * MIB, 5))], &soon()).unwrap();
    links.forget(address.uuid, &[], FIRST);
    drop(views.pop());
    assert!(held_bytes(size) >= 9 * MIB, "its owner lives");
    owner.kill();
    for left in (1..=3).rev() {
        holds(size, left * MIB..(left + 1) * MIB);
        drop(views.pop());
    }
}

#[test]
fn memory_goes_back_though_the_watcher_has_not_come_to_tell_of_the_owners_end() {
    // No other test of this binary has a segment of this size: it is counted by size.
    let size = 6 * MIB;
    struct Busy(std::sync::Mutex<std::sync::mpsc::Receiver<()>>);
    impl mooncake_segment::LinkEvents for Busy {
        fn owner_gone(&self, _: SegmentUuid, _: Option<ProcessIdentity>) {
            let _ = self.0.lock().unwrap().recv();
        }
        fn take_epoch(&self, _: mooncake_segment::EpochQuestion) {}
    }
    let (release, released) = channel();
    let events = Busy(std::sync::Mutex::new(released));
    let links = mooncake_segment::Links::new(mooncake_segment::LinkOptions::new(WRITER), Box::new(events)).unwrap();
    let (mut first, first_address) = start_owner(MIB);
    let (mut second, address) = start_owner(size);
    let _first = links.link(&first_address, &soon()).unwrap();
    let link = links.link(&address, &soon()).unwrap();
    link.write(rid(1, 1), 0, &[Source::new(&pattern(5 * MIB, 5))], &soon()).unwrap();
    let _view = link.view(rid(1, 1), 0, 1024, None).unwrap().unwrap();
    drop(link);
    first.kill();
    let until = Instant::now() + Duration::from_secs(5);
    while links.link(&first_address, &Deadline::at(Instant::now())).is_ok() {
        assert!(Instant::now() < until, "the end of the first is noticed");
    }
    second.kill();
    links.forget(address.uuid, &[], FIRST);
    holds(size, 0..MIB);
    drop(release);
}

#[test]
fn a_segment_is_forgotten_while_another_thread_still_connects_to_it() {
    let (owner, address) = start_owner(4 * MIB);
    let (links, _noticed) = links(Paths::ALL);
    let ended = while_connecting(&links, &owner, &address, |connecting| {
        let begun = Instant::now();
        links.forget(address.uuid, &[], FIRST);
        assert!(begun.elapsed() < Duration::from_millis(200), "{:?}", begun.elapsed());
        assert!(!connecting.is_finished());
    });
    let e = ended.unwrap_err();
    assert!(e.to_string().contains("has left the pool"), "{e}");
    assert!(links.report().is_empty());
}
