//! An owner says which processes that mapped its memory have ended, and by which number their master knows them.

use std::io::Write;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use mooncake_ids::{Rid, SegmentUuid};
use mooncake_segment::{Fence, Path, ProcessGone, SegmentServer, ServerEvents, ServerOptions};

use crate::support::*;

fn gone(owner: &Owner, mark: u64) -> Option<Heard> {
    Some(Heard::ProcessGone(ProcessGone { session: WRITER, uuid: owner.memory.uuid(), mark }))
}

#[test]
fn the_end_of_a_reader_is_told_with_its_mark() {
    let owner = Owner::new(MIB);
    owner.memory.mapping().write(rid(1, 1), 0, &[mooncake_memory::Source::new(&[0; 4096])]).unwrap();
    let mut reader = start_marked(&owner.address(), 77);
    assert_eq!(reader.ask(format!("view {} 0 1024", rid(1, 1).0)), "viewed");
    reader.kill();
    assert_eq!(owner.hears_within(2000), gone(&owner, 77));
    assert_eq!(owner.hears_within(50), None, "once");
}

#[test]
fn a_process_without_a_mark_or_one_that_unmapped_before_it_ended_proves_nothing() {
    let owner = Owner::new(MIB);
    let mut unknown = start_writer(&owner.address(), Path::SharedMemory);
    assert!(unknown.ask(format!("write {} 0 4096", rid(1, 1).0)).starts_with("ok"));
    unknown.kill();
    let mut tidy = start_marked(&owner.address(), 77);
    assert!(tidy.ask(format!("write {} 0 4096", rid(1, 2).0)).starts_with("ok"));
    assert_eq!(tidy.ask("let-go"), "let go");
    let until = Instant::now() + Duration::from_secs(5);
    while owner.server.attached() > 0 {
        assert!(Instant::now() < until, "{} attachments are left", owner.server.attached());
        std::thread::yield_now();
    }
    tidy.leave();
    assert_eq!(owner.hears_within(50), None);
}

/// Reports the ends of processes, and is busy at each fence until it is told to go on.
struct Busy {
    gone: Sender<ProcessGone>,
    at_fence: Sender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl ServerEvents for Busy {
    fn fenced(&self, _: SegmentUuid, _: Rid) {
        let _ = self.at_fence.send(());
        let _ = self.go_on.lock().unwrap().recv();
    }
    fn epoch_taken(&self, _: u16, _: SegmentUuid) {}
    fn process_gone(&self, gone: ProcessGone) {
        let _ = self.gone.send(gone);
    }
}

#[test]
fn what_a_process_said_before_its_end_counts_where_its_owner_hears_of_both_at_once() {
    let (gone, ends) = channel();
    let (at_fence, fences) = channel();
    let (release, go_on) = channel();
    let events = Busy { gone, at_fence, go_on: Mutex::new(go_on) };
    let mut owner = Owner::new(MIB);
    // The same memory behind a server that reports to this.
    owner.server = SegmentServer::start(ServerOptions::new([127, 0, 0, 1].into(), 0, OWNER), Box::new(events)).unwrap();
    owner.server.add(owner.memory.clone(), owner.address().access_key);
    let mut reader = start_writer(&owner.address(), Path::SharedMemory);
    assert_eq!(reader.ask("attach-to-write"), "attached");
    // The end of a write, and with that of its fence, is for the owner's thread to tell.
    let mut lane = lane_by_hand(&owner.address(), None);
    lane.write_all(&request_by_hand(2, rid(1, 1), 0, 4096)).unwrap();
    let until = Instant::now() + Duration::from_secs(5);
    while owner.memory.mapping().max_stamp(0, 4096).unwrap() == 0 {
        assert!(Instant::now() < until, "the write begins");
    }
    let fence =
        Fence { uuid: owner.memory.uuid(), rid: rid(1, 1), offset: 0, len: 4096, writer: 9, writer_done: false };
    assert!(!owner.server.fence(fence));
    drop(lane);
    fences.recv_timeout(Duration::from_secs(5)).unwrap();
    assert_eq!(reader.ask("introduce 77"), "introduced");
    assert!(reader.leave().success());
    drop(release);
    let told = ProcessGone { session: WRITER, uuid: owner.memory.uuid(), mark: 77 };
    assert_eq!(ends.recv_timeout(Duration::from_secs(5)), Ok(told));
}

#[test]
fn the_mark_is_that_of_the_connection_and_not_of_the_session_it_names() {
    let owner = Owner::new(MIB);
    // This very process names the session of the other one, and lives on.
    let mut liar = attach_by_hand(&owner.address(), 1);
    let (reply, _fds) = descriptors_by_hand(&liar);
    assert_eq!(reply[11] & 2, 2, "it takes introductions");
    liar.write_all(&introduction_by_hand(78)).unwrap();
    let mut reader = start_marked(&owner.address(), 77);
    assert!(reader.ask(format!("write {} 0 4096", rid(1, 1).0)).starts_with("ok"));
    reader.kill();
    assert_eq!(owner.hears_within(2000), gone(&owner, 77));
    drop(liar);
    assert_eq!(owner.hears_within(50), None, "a connection that closes proves nothing");
}
