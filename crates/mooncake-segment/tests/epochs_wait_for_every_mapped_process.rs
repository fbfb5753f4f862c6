//! A segment obeys a new epoch when nobody writes anything older there.

use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use mooncake_ids::SegmentUuid;
use mooncake_memory::Source;
use mooncake_segment::{Epoch, EpochQuestion, Link, Links, Path, Paths, TransferError, TwoEpochs};

use crate::support::*;

/// A link over one path, and what keeps it.
fn links_of(owner: &Owner, path: Path) -> (Arc<Link>, Links) {
    let (links, _) = links(Paths::only(path));
    (links.link(&owner.address(), &soon()).unwrap(), links)
}

#[test]
fn without_peers_an_epoch_is_taken_at_once_and_older_writes_are_refused() {
    let owner = Owner::new(MIB);
    assert_eq!(owner.take_epoch(3), [owner.memory.uuid()]);
    for path in [Path::Local, Path::Tcp] {
        let (links, _noticed) = links(Paths::only(path));
        let link = links.link(&owner.address(), &soon()).unwrap();
        let e = link.write(rid(2, 9), 0, &[Source::new(b"old")], &soon()).unwrap_err();
        assert!(e.settled && matches!(e.error, TransferError::Superseded { .. }), "{e}");
        link.write(rid(3, 1 + path as u64), 0, &[Source::new(b"new")], &soon()).unwrap();
        // Reads of older placements go on: the stamps decide those.
        links.raise_epoch(4);
        assert!(link.write(rid(3, 9), 0, &[Source::new(b"old")], &soon()).unwrap_err().settled);
    }
}

#[test]
fn a_process_that_maps_the_segment_must_confirm_even_if_it_only_reads() {
    for command in ["write 281474976710658 0 4096", "view 281474976710658 0 1024"] {
        let owner = Owner::new(MIB);
        owner.memory.mapping().write(rid(1, 1), 0, &[Source::new(&[0; 4096])]).unwrap();
        let mut peer = start_writer(&owner.address(), Path::SharedMemory);
        peer.ask(command);
        assert_eq!(owner.take_epoch(2), [] as [SegmentUuid; 0]);
        assert_eq!(owner.hears_within(300), None, "it has not confirmed");
        // Refused by the peer itself, before its client layer has said anything.
        assert!(peer.ask(format!("write {} 0 1024", rid(1, 5).0)).contains("epoch"));
        assert_eq!(peer.ask("confirm"), "confirmed");
        assert_eq!(owner.hears_within(2000), Some(Heard::EpochTaken(2)));
        assert!(peer.ask(format!("write {} 0 1024", rid(2, 1).0)).starts_with("ok"));
        // Taken once is taken.
        assert_eq!(owner.take_epoch(2), [owner.memory.uuid()]);
    }
}

#[test]
fn a_silent_peer_keeps_the_segment_closed_until_it_is_gone() {
    let owner = Owner::new(MIB);
    let mut peer = start_writer(&owner.address(), Path::SharedMemory);
    peer.ask(format!("write {} 0 4096", rid(1, 1).0));
    peer.stop();
    assert!(owner.take_epoch(2).is_empty());
    assert_eq!(owner.hears_within(300), None);
    peer.kill();
    assert_eq!(owner.hears_within(2000), Some(Heard::EpochTaken(2)));
}

#[test]
fn a_peer_that_hangs_up_and_lives_on_keeps_the_segment_closed_until_it_is_gone() {
    let owner = Owner::new(MIB);
    let mut peer = start_writer(&owner.address(), Path::SharedMemory);
    assert_eq!(peer.ask("attach-to-write"), "attached");
    assert!(owner.take_epoch(2).is_empty());
    assert_eq!(peer.ask("hang-up"), "hung up");
    assert_eq!(owner.hears_within(300), None, "a closed connection proves nothing");
    assert!(owner.take_epoch(3).is_empty(), "nor for who asks afterwards");
    assert_eq!((owner.hears_within(100), owner.server.taken(owner.memory.uuid())), (None, 0));
    peer.kill();
    assert_eq!(owner.hears_within(2000), Some(Heard::EpochTaken(3)));
}

#[test]
fn what_is_taken_is_known_apart_from_what_was_asked() {
    let owner = Owner::new(MIB);
    let uuid = owner.memory.uuid();
    assert_eq!((owner.server.taken(uuid), owner.server.taken(SegmentUuid([0; 16]))), (0, 0));
    owner.take_epoch(2);
    assert_eq!(owner.server.taken(uuid), 2);
    let mut peer = start_writer(&owner.address(), Path::SharedMemory);
    peer.ask(format!("write {} 0 4096", rid(2, 1).0));
    peer.stop();
    for _ in 0..2 {
        assert!(owner.take_epoch(3).is_empty());
        assert_eq!((owner.hears_within(100), owner.server.taken(uuid)), (None, 2));
    }
    peer.kill();
    assert_eq!(owner.hears_within(2000), Some(Heard::EpochTaken(3)));
    assert_eq!(owner.server.taken(uuid), 3);
    assert_eq!(owner.take_epoch(3), [uuid], "said again when asked again");
}

#[test]
fn another_store_of_the_owners_process_is_asked_like_a_process() {
    let owner = Owner::new(MIB);
    owner.memory.mapping().write(rid(1, 1), 0, &[Source::new(b"seen")]).unwrap();
    let (links, noticed) = links(Paths::only(Path::Local));
    let link = links.link(&owner.address(), &soon()).unwrap();
    let view = link.view(rid(1, 1), 0, 4, None).unwrap().unwrap();
    drop(link);
    links.close();
    for _ in 0..2 {
        assert!(owner.take_epoch(2).is_empty());
    }
    assert_eq!(owner.hears_within(100), None, "it may hold what no master knows");
    let Noticed::Epoch(question) = noticed.recv().unwrap() else { panic!("no question") };
    let Noticed::Epoch(again) = noticed.recv().unwrap() else { panic!("no question") };
    assert!(
        (question.uuid(), question.epoch()) == (owner.memory.uuid(), Epoch::numbered(2)) && again.repeats(&question)
    );
    drop(again);
    question.confirm();
    assert_eq!(owner.hears_within(2000), Some(Heard::EpochTaken(2)));

    assert!(owner.take_epoch(3).is_empty());
    drop(noticed.recv().unwrap());
    assert_eq!(owner.hears_within(100), None);
    assert_eq!(*view, *b"seen");
    drop(view);
    assert_eq!(owner.hears_within(2000), Some(Heard::EpochTaken(3)));
}

#[test]
fn who_comes_after_its_owner_was_asked_is_waited_for_in_that_epoch() {
    let owner = Owner::new(MIB);
    let (before, _) = links_of(&owner, Path::Local);
    owner.take_epoch(2);
    let (later, _) = links_of(&owner, Path::Local);
    let (mapped, _keep) = links_of(&owner, Path::SharedMemory);
    let (copied, _) = links_of(&owner, Path::Tcp);
    for (link, waited_for) in [(before, [true, true]), (later, [false, true]), (mapped, [false, true])] {
        assert_eq!([1, 2].map(|epoch| link.is_waited_for_in(Epoch::numbered(epoch))), waited_for, "{}", link.path());
    }
    assert!(copied.is_waited_for_in(Epoch::numbered(1)), "nothing of it is mapped");
}

#[test]
fn who_comes_after_its_owner_was_asked_writes_nothing_older() {
    for path in [Path::Local, Path::SharedMemory, Path::Tcp] {
        let owner = Owner::new(MIB);
        assert_eq!(owner.take_epoch(2), [owner.memory.uuid()]);
        let (link, _links) = links_of(&owner, path);
        let e = link.write(rid(1, 1), 0, &[Source::new(b"x")], &soon()).unwrap_err();
        assert!(e.settled && matches!(e.error, TransferError::Superseded { .. }), "{path}: {e}");
        link.write(rid(2, 1), 0, &[Source::new(b"x")], &soon()).unwrap();
    }
}

const fn epoch(number: u16, id: u32) -> Epoch {
    Epoch { number, id }
}

/// The owner's question, once it has come.
fn question(noticed: &Receiver<Noticed>) -> EpochQuestion {
    match noticed.recv_timeout(Duration::from_secs(5)) {
        Ok(Noticed::Epoch(question)) => question,
        other => panic!("no question: {other:?}"),
    }
}

#[test]
fn who_comes_after_its_owner_was_asked_is_waited_for_in_that_very_epoch() {
    for path in [Path::Local, Path::SharedMemory] {
        let owner = Owner::new(MIB);
        owner.server.take_epoch(epoch(2, 7)).unwrap();
        let (links, noticed) = links(Paths::only(path));
        let link = links.link(&owner.address(), &soon()).unwrap();
        let waited_for = |of: Epoch| link.is_waited_for_in(of);
        // Neither another epoch of the same number nor a higher one says what the owner's master knows.
        let others = [epoch(2, 8), epoch(3, 9), epoch(1, 0)];
        assert!(waited_for(epoch(2, 7)) && !others.iter().any(|of| waited_for(*of)), "{path}");
        assert!(
            waited_for(epoch(2, 0)) && waited_for(epoch(3, 0)),
            "{path}: where only the number is known it decides"
        );
        assert!(owner.server.take_epoch(epoch(3, 9)).unwrap().is_empty());
        let asked = question(&noticed);
        assert_eq!(asked.epoch(), epoch(3, 9));
        assert!(waited_for(epoch(2, 7)) && waited_for(epoch(3, 9)) && !waited_for(epoch(2, 8)), "{path}");
        asked.confirm();
        assert_eq!(owner.hears_within(2000), Some(Heard::EpochTaken(3)));
        assert!(!waited_for(epoch(2, 7)) && waited_for(epoch(3, 9)) && !waited_for(epoch(4, 7)), "{path}");
    }
}

#[test]
fn an_owner_that_is_asked_for_two_epochs_of_one_number_says_no_more_of_it() {
    let owner = Owner::new(MIB);
    let uuid = owner.memory.uuid();
    let (asked, obeyed) = (epoch(2, 8), epoch(2, 7));
    assert_eq!(owner.server.take_epoch(obeyed).unwrap(), [uuid]);
    assert_eq!(owner.server.take_epoch(asked), Err(TwoEpochs { asked, obeyed }), "taken");
    assert_eq!(owner.server.take_epoch(obeyed).unwrap(), [uuid], "of the one that it obeys it says so again");

    let (asked, obeyed) = (epoch(3, 8), epoch(3, 7));
    let (links, noticed) = links(Paths::only(Path::SharedMemory));
    let _link = links.link(&owner.address(), &soon()).unwrap();
    assert!(owner.server.take_epoch(obeyed).unwrap().is_empty());
    assert_eq!(owner.server.take_epoch(asked), Err(TwoEpochs { asked, obeyed }), "being taken");
    question(&noticed).confirm();
    assert_eq!(
        (owner.hears_within(200), owner.server.taken(uuid)),
        (None, 2),
        "whoever hears of it may be either master"
    );
    assert!(owner.server.take_epoch(epoch(4, 8)).unwrap().is_empty());
    question(&noticed).confirm();
    assert_eq!(owner.hears_within(2000), Some(Heard::EpochTaken(4)), "a higher one ends it");
    assert_eq!(owner.server.take_epoch(epoch(4, 0)).unwrap(), [uuid], "the number alone counts where no id is known");
}

#[test]
fn the_answer_about_a_later_epoch_answers_for_an_earlier_one_that_nobody_answered() {
    for path in [Path::Local, Path::SharedMemory] {
        let owner = Owner::new(MIB);
        let (links, noticed) = links(Paths::only(path));
        let link = links.link(&owner.address(), &soon()).unwrap();
        assert!(owner.server.take_epoch(epoch(2, 7)).unwrap().is_empty());
        let first = question(&noticed);
        assert!(owner.server.take_epoch(epoch(3, 9)).unwrap().is_empty());
        let second = question(&noticed);
        assert!(second.supersedes(&first) && !first.supersedes(&second) && !second.repeats(&first));
        drop(first);
        assert_eq!(owner.hears_within(100), None);
        second.confirm();
        assert_eq!(owner.hears_within(2000), Some(Heard::EpochTaken(3)), "{path}");
        assert_eq!(owner.hears_within(100), None, "{path}: of the earlier one nothing is said");
        assert!(!link.is_waited_for_in(epoch(2, 7)), "{path}: nor is it asked about any more");
    }
}

#[test]
fn a_question_keeps_nothing_mapped() {
    for path in [Path::Local, Path::SharedMemory] {
        let owner = Owner::new(MIB);
        let (links, noticed) = links(Paths::only(path));
        let link = links.link(&owner.address(), &soon()).unwrap();
        assert!(owner.server.take_epoch(epoch(2, 7)).unwrap().is_empty());
        let asked = question(&noticed);
        assert!(!asked.is_moot());
        drop(link);
        links.close();
        assert_eq!(owner.hears_within(2000), Some(Heard::EpochTaken(2)), "{path}");
        assert!(asked.is_moot());
        asked.confirm();
    }
}

#[test]
fn an_id_travels_where_older_versions_send_zeros() {
    let owner = Owner::new(MIB);
    let (known, unknown) = (epoch(2, 0x8765_4321), epoch(3, 0));
    let mut peer = attached_by_hand(&owner.address(), 1);
    assert!(owner.server.take_epoch(known).unwrap().is_empty());
    assert_eq!(frame_by_hand(&mut peer)[4..16], [7, 0, 2, 0, 0x21, 0x43, 0x65, 0x87, 0, 0, 0, 0]);
    let reply = frame_by_hand(&mut attach_by_hand(&owner.address(), 1));
    assert_eq!((&reply[12..16], &reply[40..44]), (&[2, 0, 0, 0][..], &[0x21, 0x43, 0x65, 0x87][..]));
    assert!(owner.server.take_epoch(unknown).unwrap().is_empty());
    assert_eq!(frame_by_hand(&mut peer)[4..16], [7, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn the_word_of_an_older_version_is_no_proof_and_its_end_is() {
    for (features, believed) in [(0, false), (1, true)] {
        let owner = Owner::new(MIB);
        let mut peer = attached_by_hand(&owner.address(), features);
        assert!(owner.take_epoch(2).is_empty());
        assert_eq!(frame_by_hand(&mut peer)[4], 7, "it is asked all the same, and writes nothing older then");
        peer.write_all(&attach_frame(8, 2)).unwrap();
        let taken = Some(Heard::EpochTaken(2));
        let wait = if believed { 2000 } else { 150 };
        assert_eq!(owner.hears_within(wait), taken.filter(|_| believed), "features {features}");
        if !believed {
            peer.write_all(&attach_frame(9, 0)).unwrap();
            assert_eq!(owner.hears_within(2000), Some(Heard::EpochTaken(2)));
        }
    }
}

#[test]
fn a_tcp_lane_in_the_middle_of_an_older_write_is_cut() {
    let owner = Owner::new(64 * MIB);
    let mut writer = start_writer(&owner.address(), Path::Tcp);
    assert_eq!(writer.ask(format!("write-for-ever {} 0 {}", rid(1, 1).0, 48 * MIB)), "begun");
    std::thread::sleep(std::time::Duration::from_millis(60));
    writer.stop();
    if owner.take_epoch(2).is_empty() {
        assert_eq!(owner.hears_within(1500), Some(Heard::EpochTaken(2)));
    }
    writer.go_on();
    assert!(!writer.hear().starts_with("ok"));
}

#[test]
fn a_peer_that_unmapped_is_not_waited_for() {
    let owner = Owner::new(MIB);
    let (links, noticed) = links(Paths::only(Path::SharedMemory));
    let link = links.link(&owner.address(), &soon()).unwrap();
    link.write(rid(1, 1), 0, &[Source::new(b"x")], &soon()).unwrap();
    let view = link.view(rid(1, 1), 0, 1, None).unwrap().unwrap();
    drop(link);
    links.close();
    assert!(owner.take_epoch(2).is_empty(), "the view still maps it");
    drop(noticed);
    assert_eq!(*view, *b"x");
    drop(view);
    assert_eq!(owner.hears_within(2000), Some(Heard::EpochTaken(2)));
    assert_eq!(owner.server.attached(), 0);
}

#[test]
fn a_process_that_could_not_map_the_segment_is_not_waited_for() {
    let owner = Owner::new(64 * MIB);
    let mut peer = start_writer(&owner.address(), Path::SharedMemory);
    let mut reasons = Vec::new();
    // The socket, the owner's pidfd, the two memfds, the lock that says who maps it: each is the first not to be had
    // once.
    for left in 0..6 {
        reasons.push(peer.ask(format!("attach-short-of descriptors {left}")));
    }
    for left in [16 * MIB, 48 * MIB] {
        reasons.push(peer.ask(format!("attach-short-of addresses {left}")));
    }
    for met in ["0 descriptors came", "1 descriptors came", "cannot be locked", "mmap", "shm"] {
        assert!(reasons.iter().any(|reason| reason.contains(met)), "no {met:?} in {reasons:#?}");
    }
    nobody_is_waited_for(&owner);
}

#[test]
fn descriptors_that_were_let_go_of_keep_nothing_closed_once_that_is_said() {
    let owner = Owner::new(MIB);
    for received in [true, false] {
        let mut stream = attach_by_hand(&owner.address(), 1);
        if received {
            let (reply, fds) = descriptors_by_hand(&stream);
            assert_eq!((reply[10], fds.len()), (0, 2));
        }
        eventually("attached", || owner.server.attached() == 1);
        stream.write_all(&detached_by_hand()).unwrap();
        drop(stream);
        nobody_is_waited_for(&owner);
    }
    // Without that word the descriptors may still be there: the end of the process is awaited.
    let stream = attach_by_hand(&owner.address(), 1);
    let (_, _fds) = descriptors_by_hand(&stream);
    drop(stream);
    assert_eq!(owner.take_epoch(3), [] as [SegmentUuid; 0]);
    assert_eq!(owner.hears_within(200), None);
}

fn nobody_is_waited_for(owner: &Owner) {
    eventually("nobody is attached", || owner.server.attached() == 0);
    assert_eq!(owner.take_epoch(2), [owner.memory.uuid()]);
}
