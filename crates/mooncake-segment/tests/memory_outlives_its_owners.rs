//! Memory comes to another owner while processes that the one before let in still have it mapped (docs/safety.md, rule
//! 26). Here both owners are in this process: what they have of each other is the memory and its locks.

use mooncake_ids::SegmentUuid;
use mooncake_memory::{Source, TenureLock, TenureLocks, TenureUse};
use mooncake_segment::{Epoch, LinkError, Links, Path, Paths, TransferError};

use crate::support::*;

const ONE: Epoch = Epoch { number: 1, id: 5 };
const TWO: Epoch = Epoch { number: 2, id: 7 };
/// What a process says in its hello that locks what it maps, and knows its pins.
const LOCKS: u8 = 1 | 4;
const NONE: [SegmentUuid; 0] = [];

fn first() -> Owner {
    let owner = Owner::of_tenure(1, ONE, None);
    assert_eq!(owner.server.take_epoch(ONE), Ok(vec![owner.memory.uuid()]));
    owner
}

fn heir_of(owner: &Owner) -> Owner {
    Owner::of_tenure(2, ONE, Some(&owner.memory))
}

/// Whether locks of a tenure before that are there: of writers, and of viewers.
fn locks(owner: &Owner, tenure: u32) -> (bool, bool) {
    let locks = TenureLocks::of(owner.memory.mapping()).unwrap();
    let [writes, views] = [TenureUse::Writes, TenureUse::Views].map(|what| locks.any_before(tenure, what).unwrap());
    (writes, views)
}

#[test]
fn a_writer_that_stands_still_keeps_the_next_owner_from_fences_and_epochs_until_it_goes_on_or_ends() {
    for ends in [false, true] {
        let owner = first();
        let mut writer = start_writer(&owner.address(), Path::SharedMemory);
        assert!(writer.ask(format!("write {} 0 4096", rid(1, 1).0)).starts_with("ok"));
        assert_eq!(locks(&owner, 2), (true, true));
        writer.stop();
        owner.server.shutdown();
        let heir = heir_of(&owner);
        assert_eq!(heir.server.take_epoch(ONE), Ok(NONE.to_vec()));
        assert!(!heir.fence(rid(1, 3), 8192, 4096));
        assert_eq!((heir.hears_within(300), heir.server.awaiting_elders()), (None, 1));
        if ends {
            writer.kill();
        } else {
            writer.go_on();
        }
        let mut heard: Vec<_> = (0..2).filter_map(|_| heir.hears_within(2000)).collect();
        heard.sort_by_key(|heard| matches!(heard, Heard::EpochTaken(_)));
        assert_eq!(heard, [Heard::Fenced(rid(1, 3)), Heard::EpochTaken(1)]);
        assert!(!locks(&heir, 2).0);
    }
}

#[test]
fn a_process_writes_no_more_once_its_owner_has_hung_up_and_under_the_next_one_it_does() {
    let owner = first();
    let (links, _noticed) = links(Paths::only(Path::SharedMemory));
    let link = links.link(&owner.address(), &soon()).unwrap();
    let write = |rid| link.write(rid, 0, &[Source::new(&[1; 4096])], &soon());
    write(rid(1, 1)).unwrap();
    assert!(locks(&owner, 2).0);
    owner.server.shutdown();
    eventually("it has unmapped it to write", || !locks(&owner, 2).0);
    let late = write(rid(1, 3)).unwrap_err();
    assert!(late.settled && matches!(late.error, TransferError::Gone { .. }), "{late}");
    let heir = heir_of(&owner);
    eventually("none of before is left", || heir.server.take_epoch(ONE) == Ok(vec![heir.memory.uuid()]));
    let mut next = start_writer(&heir.address(), Path::SharedMemory);
    assert!(next.ask(format!("write {} 4096 4096", rid(1, 5).0)).starts_with("ok"));
    assert_eq!((locks(&heir, 2).0, locks(&heir, 3).0), (false, true));
}

#[test]
fn a_view_keeps_a_later_epoch_from_the_next_owner_and_not_the_one_that_its_master_knows_it_in() {
    let owner = first();
    owner.memory.mapping().write(rid(1, 1), 0, &[Source::new(&[7; 4096])]).unwrap();
    let (links, _noticed) = links(Paths::only(Path::SharedMemory));
    let link = links.link(&owner.address(), &soon()).unwrap();
    eventually("views may begin", || link.is_waited_for_in(ONE));
    let view = link.view(rid(1, 1), 0, 4096, None).unwrap().unwrap();
    drop(link);
    owner.server.shutdown();
    links.close();
    let heir = heir_of(&owner);
    assert_eq!(locks(&heir, 2), (false, true));
    eventually("the epoch of before is taken", || heir.server.take_epoch(ONE) == Ok(vec![heir.memory.uuid()]));
    while heir.hears_within(100) == Some(Heard::EpochTaken(1)) {}
    assert_eq!(heir.server.take_epoch(TWO), Ok(NONE.to_vec()));
    assert_eq!(heir.hears_within(300), None, "no master of the later one knows the view");
    assert_eq!(&view[..], &[7; 4096]);
    drop(view);
    assert_eq!(heir.hears_within(2000), Some(Heard::EpochTaken(2)));
    eventually("nothing is mapped", || heir.server.awaiting_elders() == 0);
}

#[test]
fn a_process_that_knows_of_no_locks_gets_no_descriptors_and_one_that_does_is_told_the_tenure() {
    let heir = heir_of(&first());
    let (reply, fds) = descriptors_by_hand(&attach_by_hand(&heir.address(), 1));
    assert_eq!((reply[10], fds.len()), (9, 0), "another version");
    let (reply, fds) = descriptors_by_hand(&attach_by_hand(&heir.address(), LOCKS));
    assert_eq!((reply[10], fds.len(), u32::from_le_bytes(reply[44..48].try_into().unwrap())), (0, 2, 2));
    let ordinary = Owner::new(MIB);
    let (reply, fds) = descriptors_by_hand(&attach_by_hand(&ordinary.address(), 1));
    assert_eq!((reply[10], fds.len(), &reply[44..48]), (0, 2, &[0; 4][..]));
}

#[test]
fn a_lock_of_the_next_tenure_is_no_elders() {
    let owner = first();
    owner.server.shutdown();
    let heir = heir_of(&owner);
    let _newcomer = TenureLock::take(heir.memory.mapping(), TenureUse::Writes, 2).unwrap();
    eventually("none of before is there", || heir.server.take_epoch(ONE) == Ok(vec![heir.memory.uuid()]));
}

#[test]
fn what_is_older_than_the_predecessors_epoch_is_refused_from_the_first_byte_on() {
    let owner = Owner::of_tenure(3, TWO, Some(&first().memory));
    for (nth, path) in [(1, Path::Tcp), (2, Path::SharedMemory)] {
        let (links, _noticed) = links(Paths::only(path));
        let link = links.link(&owner.address(), &soon()).unwrap();
        let write = |rid| link.write(rid, nth * 8192, &[Source::new(b"x")], &soon());
        assert!(write(rid(1, 9)).unwrap_err().settled, "{path}");
        write(rid(2, nth)).unwrap();
    }
}

#[test]
fn who_lost_an_owner_reaches_the_next_one_where_that_is() {
    let owner = first();
    let (links, _noticed): (Links, _) = links(Paths { local: false, ..Paths::ALL });
    let reached = |owner: &Owner| links.link(&owner.address(), &soon()).map(|link| link.path());
    assert_eq!(reached(&owner).unwrap(), Path::SharedMemory);
    let former = owner.address();
    owner.server.shutdown();
    let heir = heir_of(&owner);
    // Where it was nobody is: not even over TCP, as it has another port by now.
    let lost = || matches!(links.link(&former, &soon()), Err(LinkError::NoPath { .. } | LinkError::Avoided { .. }));
    eventually("the owner of before is lost", lost);
    eventually("the next one is reached", || reached(&heir).is_ok_and(|path| path == Path::SharedMemory));
}
