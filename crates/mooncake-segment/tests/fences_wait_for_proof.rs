//! A fence is done when nothing of the writer can land any more, and not before.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use mooncake_ids::Rid;
use mooncake_memory::{Destination, Source, crc32c};
use mooncake_segment::{Fence, LinkError, Path, Paths, TransferError};

use crate::support::*;

#[test]
fn a_writer_that_never_came_is_fenced_at_once() {
    let owner = Owner::new(MIB);
    assert!(owner.fence(rid(1, 1), 0, 4096));
    assert_eq!(owner.memory.mapping().max_stamp(0, 4096).unwrap(), rid(1, 1).tombstone());
    assert_eq!(owner.memory.mapping().max_stamp(4096, 4096).unwrap(), 0);
}

#[test]
fn a_reader_blocks_no_fence() {
    let owner = Owner::new(MIB);
    let (links, _noticed) = links(Paths::only(Path::SharedMemory));
    let link = links.link(&owner.address(), &soon()).unwrap();
    let _ = link.read(rid(1, 1), 0, &mut [Destination::new(&mut [0])], None, &soon());
    assert_eq!(owner.server.attached(), 1);
    assert!(owner.fence(rid(1, 1), 0, 4096));
}

#[test]
fn a_write_that_comes_after_its_fence_is_refused_and_the_lane_stays_in_step() {
    let owner = Owner::new(4 * MIB);
    for path in [Path::Local, Path::SharedMemory, Path::Tcp] {
        let (links, _noticed) = links(Paths::only(path));
        let link = links.link(&owner.address(), &soon()).unwrap();
        let (mine, old) = (rid(1 + path as u64, 2), rid(1 + path as u64, 1));
        for len in [100, 100_000, 2 * MIB] {
            let data = pattern(len, 1);
            owner.fence(old, 0, len);
            let e = link.write(old, 0, &[Source::new(&data)], &soon()).unwrap_err();
            assert!(e.settled && matches!(e.error, TransferError::Superseded { .. }), "{path} {len}: {e}");
            let crc = link.write(mine, 0, &[Source::new(&data)], &soon()).unwrap();
            let mut back = vec![0; data.len()];
            link.read(mine, 0, &mut [Destination::new(&mut back)], Some(crc), &soon()).unwrap();
        }
    }
}

#[test]
fn a_stopped_mapped_writer_is_fenced_when_it_confirms() {
    let owner = Owner::new(64 * MIB);
    let mut writer = start_writer(&owner.address(), Path::SharedMemory);
    assert!(writer.ask(format!("write {} 0 4096", rid(1, 1).0)).starts_with("ok"));
    writer.stop();
    // Placed, and stopped before its first byte.
    let late = rid(1, 2);
    assert!(!owner.fence(late, 8192, 4096));
    assert!(!owner.fence(late, 8192, 4096), "asked again, still not proven");
    assert_eq!(owner.hears_within(400), None);
    writer.go_on();
    assert_eq!(owner.hears_within(2000), Some(Heard::Fenced(late)));
    assert_eq!(owner.hears_within(100), None, "reported once");
    let answer = writer.ask(format!("write {} 8192 4096", late.0));
    assert!(answer.contains("refused") && answer.contains("settled=true"), "{answer}");
    assert!(writer.ask(format!("write {} 8192 4096", rid(1, 3).0)).starts_with("ok"));
}

#[test]
fn a_mapped_writer_stopped_in_mid_copy_is_fenced_after_its_last_byte() {
    let owner = Owner::new(64 * MIB);
    let mut writer = start_writer(&owner.address(), Path::SharedMemory);
    let (mine, len) = (rid(1, 1), 48 * MIB);
    assert_eq!(writer.ask(format!("write-for-ever {} 0 {len}", mine.0)), "begun");
    std::thread::sleep(Duration::from_millis(100));
    writer.stop();
    assert!(!owner.fence(mine, 0, len));
    assert_eq!(owner.hears_within(300), None);
    writer.go_on();
    assert_eq!(owner.hears_within(5000), Some(Heard::Fenced(mine)));
    // Whatever it wrote, it carries the tombstone, and nothing comes after it.
    let mapping = owner.memory.mapping();
    assert!(mapping.check_stamps(Rid(mine.tombstone()), 0, len).unwrap());
    let after = mapping.crc(0, len).unwrap();
    assert!(writer.hear().contains("refused"));
    assert_eq!(mapping.crc(0, len).unwrap(), after);
    assert!(mapping.check_stamps(Rid(mine.tombstone()), 0, len).unwrap());
}

#[test]
fn a_stopped_mapped_writer_is_fenced_when_it_dies() {
    let owner = Owner::new(4 * MIB);
    let mut writer = start_writer(&owner.address(), Path::SharedMemory);
    assert!(writer.ask(format!("write {} 0 4096", rid(1, 1).0)).starts_with("ok"));
    writer.stop();
    assert!(!owner.fence(rid(1, 2), 8192, 4096));
    assert_eq!(owner.hears_within(200), None);
    let killed = Instant::now();
    writer.kill();
    assert_eq!(owner.hears_within(2000), Some(Heard::Fenced(rid(1, 2))));
    assert!(killed.elapsed() < Duration::from_millis(500), "{:?}", killed.elapsed());
    assert_eq!(owner.server.attached(), 0);
}

#[test]
fn a_mapped_writer_that_hangs_up_and_lives_on_is_not_fenced_until_it_dies() {
    let owner = Owner::new(MIB);
    let mut writer = start_writer(&owner.address(), Path::SharedMemory);
    assert_eq!(writer.ask("attach-to-write"), "attached");
    assert!(!owner.fence(rid(1, 1), 0, 4096));
    assert_eq!(writer.ask("hang-up"), "hung up");
    assert_eq!(owner.hears_within(300), None, "a closed connection proves nothing");
    assert!(!owner.fence(rid(1, 2), 8192, 4096), "nor for who asks afterwards");
    assert_eq!(owner.hears_within(100), None);
    writer.kill();
    let fenced = [owner.hears_within(2000), owner.hears_within(2000)];
    for rid in [rid(1, 1), rid(1, 2)] {
        assert!(fenced.contains(&Some(Heard::Fenced(rid))), "{fenced:?}");
    }
}

#[test]
fn a_writer_that_says_it_is_done_is_fenced_at_once() {
    let owner = Owner::new(4 * MIB);
    let mut writer = start_writer(&owner.address(), Path::SharedMemory);
    assert!(writer.ask(format!("write {} 0 4096", rid(1, 1).0)).starts_with("ok"));
    writer.stop();
    let fence =
        Fence { uuid: owner.memory.uuid(), rid: rid(1, 2), offset: 0, len: 4096, writer: WRITER, writer_done: true };
    assert!(owner.server.fence(fence));
    // First without its word, then with it.
    assert!(!owner.fence(rid(1, 4), 0, 4096));
    owner.server.fence(Fence { rid: rid(1, 4), ..fence });
    assert_eq!(owner.hears_within(1000), Some(Heard::Fenced(rid(1, 4))));
}

#[test]
fn a_killed_tcp_writer_with_megabytes_in_flight_lands_nothing_after_its_fence() {
    for round in 0..3u64 {
        let owner = Owner::new(64 * MIB);
        let mut writer = start_writer(&owner.address(), Path::Tcp);
        let (mine, len) = (rid(1, 1), 48 * MIB);
        assert_eq!(writer.ask(format!("write-for-ever {} 0 {len}", mine.0)), "begun");
        std::thread::sleep(Duration::from_millis(60 + 7 * round));
        writer.kill();
        nothing_lands_after(&owner, mine, len);
    }
}

#[test]
fn a_stopped_tcp_writer_is_cut_and_lands_nothing_after_its_fence() {
    let owner = Owner::new(64 * MIB);
    let mut writer = start_writer(&owner.address(), Path::Tcp);
    let (mine, len) = (rid(1, 1), 48 * MIB);
    assert_eq!(writer.ask(format!("write-for-ever {} 0 {len}", mine.0)), "begun");
    std::thread::sleep(Duration::from_millis(60));
    writer.stop();
    // Within the 1.5 s that are allowed here: nobody waits for the writer.
    nothing_lands_after(&owner, mine, len);
    let next = owner.memory.mapping().crc(0, len).unwrap();
    writer.go_on();
    let answer = writer.hear();
    assert!(!answer.starts_with("ok"), "{answer}");
    assert_eq!(owner.memory.mapping().crc(0, len).unwrap(), next, "nor when it runs again");
    assert!(writer.ask(format!("write {} 0 4096", rid(1, 2).0)).starts_with("ok"), "on a fresh lane");
}

/// A lane that stands still in the middle of a write.
fn half_a_write(owner: &Owner, rid: Rid, len: u64, sent: u64) -> TcpStream {
    let mut stream = lane_by_hand(&owner.address(), None);
    stream.write_all(&request_by_hand(2, rid, 0, len)).unwrap();
    stream.write_all(&vec![0xee; sent as usize]).unwrap();
    let until = Instant::now() + Duration::from_secs(5);
    while owner.memory.mapping().crc(sent - 1, 1).unwrap() != crc32c(&[0xee]) {
        assert!(Instant::now() < until, "the first part arrives");
    }
    stream
}

#[test]
fn a_lane_that_stands_still_in_mid_write_is_cut_before_its_fence_is_done() {
    let owner = Owner::new(16 * MIB);
    let (mine, len) = (rid(1, 1), 8 * MIB);
    let mut lane = half_a_write(&owner, mine, len, 4 * MIB);
    assert!(!owner.fence(mine, 0, len), "a write is under way");
    let asked = Instant::now();
    assert_eq!(owner.hears_within(1500), Some(Heard::Fenced(mine)));
    assert!(asked.elapsed() >= Duration::from_millis(100), "it had its time to finish");
    let mapping = owner.memory.mapping();
    let data = pattern(len, 7);
    mapping.write(rid(1, 2), 0, &[Source::new(&data)]).unwrap();
    // The rest of the old write, which finds the lane closed.
    let _ = lane.write_all(&vec![0xee; 4 << 20]);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(mapping.crc(0, len).unwrap(), crc32c(&data));
    assert!(mapping.check_stamps(rid(1, 2), 0, len).unwrap());
}

#[test]
fn a_lane_that_finishes_its_write_in_time_is_not_cut() {
    let owner = Owner::new(16 * MIB);
    let (mine, len) = (rid(1, 1), 8 * MIB);
    let mut lane = half_a_write(&owner, mine, len, 4 * MIB);
    assert!(!owner.fence(mine, 0, len));
    lane.write_all(&vec![0xee; 4 << 20]).unwrap();
    assert_eq!(owner.hears_within(2000), Some(Heard::Fenced(mine)));
    assert!(
        owner.memory.mapping().check_stamps(Rid(mine.tombstone()), 0, len).unwrap(),
        "written over, tombstoned again"
    );
    let mut reply = [0; 32];
    lane.read_exact(&mut reply).unwrap();
    assert_eq!(reply[4], 0, "acknowledged");
    assert_eq!(owner.server.lanes(), 1);
}

fn nothing_lands_after(owner: &Owner, rid: Rid, len: u64) {
    if !owner.fence(rid, 0, len) {
        assert_eq!(owner.hears_within(1500), Some(Heard::Fenced(rid)));
    }
    let mapping = owner.memory.mapping();
    assert!(mapping.check_stamps(Rid(rid.tombstone()), 0, len).unwrap());
    // The next placement's bytes, which nothing of the old one may touch.
    let data = pattern(len, 99);
    mapping.write(Rid(rid.0 + 2), 0, &[Source::new(&data)]).unwrap();
    let until = Instant::now() + Duration::from_millis(500);
    while Instant::now() < until {
        assert_eq!(mapping.crc(0, len).unwrap(), crc32c(&data));
        assert!(mapping.check_stamps(Rid(rid.0 + 2), 0, len).unwrap());
    }
}

#[test]
fn what_one_session_reserved_is_not_written_over_the_links_of_another() {
    let owner = Owner::new(MIB);
    let (links, _noticed) = links(Paths::only(Path::SharedMemory));
    for other in [WRITER - 1, WRITER + 1] {
        match links.link_to_write(other, &owner.address(), &soon()) {
            // Its fence would not have asked this process.
            Err(LinkError::SessionOver { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(owner.server.attached(), 0);
    let link = links.link_to_write(WRITER, &owner.address(), &soon()).unwrap();
    link.write(rid(1, 1), 0, &[Source::new(b"x")], &soon()).unwrap();
}

#[test]
fn a_writer_that_stood_still_through_ten_thousand_fences_answers_them_all() {
    const FENCES: u64 = 10_000;
    // An extent that is being fenced is nobody else's.
    let owner = Owner::new(FENCES * 1024);
    let mut writer = start_writer(&owner.address(), Path::SharedMemory);
    assert!(writer.ask(format!("write {} 0 4096", rid(1, 1).0)).starts_with("ok"));
    writer.stop();
    // More than the connection holds unread: a batch of keys, and the epoch on top.
    for number in 0..FENCES {
        assert!(!owner.fence(rid(1, 2 + number), number * 1024, 1024));
    }
    assert!(owner.take_epoch(2).is_empty());
    assert_eq!(owner.hears_within(100), None);
    writer.go_on();
    assert_eq!(writer.ask("confirm"), "confirmed");
    let (mut fenced, mut taken) = (std::collections::BTreeSet::new(), false);
    while fenced.len() < FENCES as usize || !taken {
        match owner.hears_within(10_000) {
            Some(Heard::Fenced(rid)) => assert!(fenced.insert(rid), "reported once"),
            Some(Heard::EpochTaken(2)) => taken = true,
            other => panic!("{other:?} after {} fences; taken: {taken}", fenced.len()),
        }
    }
    assert_eq!(owner.server.attached(), 1, "it is the attachment that it was");
    assert!(writer.ask(format!("write {} 0 4096", rid(2, 1).0)).starts_with("ok"));
}

#[test]
fn a_fence_costs_the_same_however_many_are_pending() {
    const FENCES: u64 = 50_000;
    // An extent that is being fenced is nobody else's.
    let owner = Owner::new(FENCES * 1024);
    let mut writer = start_writer(&owner.address(), Path::SharedMemory);
    assert!(writer.ask(format!("write {} 0 4096", rid(1, 1).0)).starts_with("ok"));
    writer.stop();
    // Of this thread alone, so that what else the machine does is not in it.
    let used = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let spent = |first: u64| {
        let before = Duration::try_from(used()).unwrap();
        (first..first + FENCES / 10).for_each(|number| assert!(!owner.fence(rid(1, 2 + number), number * 1024, 1024)));
        Duration::try_from(used()).unwrap() - before
    };
    let first = spent(0);
    for tenth in 1..9 {
        spent(tenth * FENCES / 10);
    }
    let last = spent(FENCES - FENCES / 10);
    assert!(last < 4 * first + Duration::from_millis(50), "{first:?} for the first tenth, {last:?} for the last");
    writer.kill();
    for number in 0..FENCES {
        assert!(matches!(owner.hears_within(10_000), Some(Heard::Fenced(_))), "after {number}");
    }
}
