//! An owner says which processes that mapped its memory have ended, and by which number their master knows them.

mod support;

use std::io::Write;
use std::time::{Duration, Instant};

use mooncake_transfer::{Path, ProcessGone};
use support::*;

#[test]
fn other_process() {
    play_role();
}

fn gone(owner: &Owner, mark: u64) -> Option<Heard> {
    Some(Heard::ProcessGone(ProcessGone { session: WRITER, uuid: owner.memory.uuid(), mark }))
}

#[test]
fn the_end_of_a_reader_is_told_with_its_mark() {
    let owner = Owner::new(MIB);
    owner.memory.mapping().write(rid(1, 1), 0, &[mooncake_memory::Source::new(&[0; 4096])]).unwrap();
    let mut reader = Other::marked(&owner.address(), 77);
    assert_eq!(reader.ask(&format!("view {} 0 1024", rid(1, 1))), "viewed");
    reader.kill();
    assert_eq!(owner.hears_within(2000), gone(&owner, 77));
    assert_eq!(owner.hears_within(50), None, "once");
}

#[test]
fn a_process_without_a_mark_or_one_that_unmapped_before_it_ended_proves_nothing() {
    let owner = Owner::new(MIB);
    let mut unknown = Other::writer(&owner.address(), Path::SharedMemory);
    assert!(unknown.ask(&format!("write {} 0 4096", rid(1, 1))).starts_with("ok"));
    unknown.kill();
    let mut tidy = Other::marked(&owner.address(), 77);
    assert!(tidy.ask(&format!("write {} 0 4096", rid(1, 2))).starts_with("ok"));
    assert_eq!(tidy.ask("let-go"), "let go");
    let until = Instant::now() + Duration::from_secs(5);
    while owner.server.attached() > 0 {
        assert!(Instant::now() < until, "{} attachments are left", owner.server.attached());
        std::thread::yield_now();
    }
    tidy.leave();
    assert_eq!(owner.hears_within(50), None);
}

#[test]
fn the_mark_is_that_of_the_connection_and_not_of_the_session_it_names() {
    let owner = Owner::new(MIB);
    // This very process names the session of the other one, and lives on.
    let mut liar = attach_by_hand(&owner.address(), 1);
    let (reply, _fds) = descriptors_by_hand(&liar);
    assert_eq!(reply[11] & 2, 2, "it takes introductions");
    liar.write_all(&introduction_by_hand(78)).unwrap();
    let mut reader = Other::marked(&owner.address(), 77);
    assert!(reader.ask(&format!("write {} 0 4096", rid(1, 1))).starts_with("ok"));
    reader.kill();
    assert_eq!(owner.hears_within(2000), gone(&owner, 77));
    drop(liar);
    assert_eq!(owner.hears_within(50), None, "a connection that closes proves nothing");
}
