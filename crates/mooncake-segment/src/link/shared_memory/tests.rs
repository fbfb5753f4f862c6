use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use mooncake_ids::Rid;
use mooncake_memory::{SegmentMemory, SegmentOptions, Source, Verify};
use mooncake_os::{ProcessIdentity, boot_id, hex, send_fds};

use super::super::fixture::{Quiet, mapping, owner};
use super::super::shared_memory::view::View;
use super::super::{Kind, Links};
use super::*;
use crate::link_events::{EpochQuestion, LinkEvents};

const RID: Rid = Rid::new(1, 1);

/// Whether a thread waits for something.
fn stands_still(thread: rustix::process::Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{}/stat", thread.as_raw_nonzero())).unwrap();
    stat.rsplit_once(") ").unwrap().1.starts_with('S')
}

#[test]
fn what_goes_back_before_a_view_is_on_the_list_is_not_viewed() {
    let (_server, memory, address) = owner(1 << 20, Quiet);
    let crc = memory.mapping().write(RID, 0, &[Source::new(&[5; 4096])]).unwrap();
    let links = Links::new(mapping(), Box::new(Quiet)).unwrap();
    let link = links.link(&address, &Deadline::at(Instant::now() + Duration::from_secs(5))).unwrap();
    let Kind::Shared(attachment) = &link.kind else { panic!("{}", link.reason()) };
    let list = attachment.remains.lock();
    std::thread::scope(|scope| {
        let (begins, begun) = std::sync::mpsc::channel();
        let viewer = scope.spawn(move || {
            begins.send(rustix::thread::gettid()).unwrap();
            View::shared(attachment, RID, 0, 4096, Verify::Crc(crc))
        });
        let thread = begun.recv().unwrap();
        // It waits for the list.
        while !stands_still(thread) {
            std::thread::yield_now();
        }
        attachment.readable().give_back(|| list.keep(1 << 20, true, false)).unwrap();
        drop(list);
        let view = viewer.join().unwrap();
        assert!(matches!(view, Err(mooncake_memory::ReadError::Stale { .. })), "a view of zeros");
    });
    assert_eq!(attachment.remains.lock().keep(1 << 20, true, false), [], "what is not viewed is off the list");
}

#[test]
fn what_an_owner_did_not_read_in_time_is_sent_when_there_is_room() {
    let (_server, _memory, address) = owner(1 << 20, Quiet);
    let links = Links::new(mapping(), Box::new(Quiet)).unwrap();
    let link = links.link(&address, &Deadline::at(Instant::now() + Duration::from_secs(5))).unwrap();
    let Kind::Shared(attachment) = &link.kind else { panic!("{}", link.reason()) };
    // A connection on which nothing goes out any more stands for the owner's.
    let (mine, mut theirs) = UnixStream::pair().unwrap();
    mine.set_nonblocking(true).unwrap();
    let mut full = 0;
    while let Ok(count) = (&mine).write(&[0; 64]) {
        full += count;
    }
    let said = Frame::plain(Op::EpochTaken, 2);
    let mut pipe = AttachPipe::new(Arc::new(Guarded::new(mine)));
    pipe.send(&said).unwrap();
    std::mem::swap(&mut attachment.talk.lock().pipe, &mut pipe);
    assert!(attachment.wants_room());
    theirs.read_exact(&mut vec![0; full]).unwrap();
    attachment.answer();
    assert!(!attachment.wants_room());
    let mut frame = [0; HELLO_LEN];
    theirs.read_exact(&mut frame).unwrap();
    assert_eq!(Frame::decode(&frame), Some(said));
}

/// An owner that does what the test says, over a connection of its own.
struct Scripted {
    memory: SegmentMemory,
    listener: UnixListener,
    address: SegmentAddress,
}

const MARK: u64 = 99;

impl Scripted {
    fn new() -> Scripted {
        let memory = SegmentMemory::create(1 << 20, SegmentOptions::default()).unwrap();
        let name = format!("mooncake-scripted-{}", hex(&memory.uuid().0));
        let at = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
        let address = SegmentAddress {
            uuid: memory.uuid(),
            bytes: memory.bytes(),
            name: "owner".into(),
            boot_id: boot_id().unwrap(),
            unix_socket: name,
            tcp: Vec::new(),
            access_key: 1,
            process: None,
            tier_file_blocks: 0,
        };
        Scripted { memory, listener: UnixListener::bind_addr(&at).unwrap(), address }
    }

    fn reply(&self) -> HelloReply {
        HelloReply {
            version: LANE_VERSION,
            status: Status::Ok,
            epoch: Epoch::numbered(1),
            bytes: self.address.bytes,
            uuid: self.address.uuid,
            features: 0,
            tenure: 0,
        }
    }

    /// Answers the next caller's hello with that, and with so many descriptors.
    fn answer(&self, reply: &HelloReply, fds: usize) -> UnixStream {
        let (mut caller, _) = self.listener.accept().unwrap();
        caller.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        caller.read_exact(&mut [0; HELLO_LEN]).unwrap();
        let all = [self.memory.data_fd(), self.memory.control_fd(), self.memory.data_fd()];
        // The rest of an answer may come later than its beginning.
        let (reply, half) = (reply.encode(), HELLO_LEN / 2);
        assert_eq!(send_fds(&caller, &reply[..half], &all[..fds]).unwrap(), half);
        caller.write_all(&reply[half..]).unwrap();
        caller
    }
}

fn soon() -> Deadline<'static> {
    Deadline::at(Instant::now() + Duration::from_secs(5))
}

/// The next message to an owner; none when the connection is closed.
fn next(caller: &mut UnixStream) -> Option<Frame> {
    let mut frame = [0; HELLO_LEN];
    caller.read_exact(&mut frame).ok().map(|()| Frame::decode(&frame).unwrap())
}

#[test]
fn an_owner_is_told_whose_process_it_is_if_it_takes_that_and_before_anything_else() {
    for (features, mark, told) in
        [(FEATURE_INTRODUCTIONS, MARK, true), (0, MARK, false), (!FEATURE_INTRODUCTIONS, MARK, false)]
    {
        let owner = Scripted::new();
        let links = Links::new(LinkOptions { mark, ..mapping() }, Box::new(Quiet)).unwrap();
        std::thread::scope(|threads| {
            let answers = threads.spawn(|| owner.answer(&HelloReply { features, ..owner.reply() }, 2));
            let link = links.link(&owner.address, &soon()).unwrap();
            let mut caller = answers.join().unwrap();
            let writes = threads.spawn(move || link.write(RID, 0, &[Source::new(&[5; 64])], &soon()).map(drop));
            if told {
                assert_eq!(next(&mut caller), Some(Frame { rid: MARK, ..Frame::plain(Op::Introduce, 0) }));
            }
            // An older one hangs up on whoever says what it does not know.
            assert_eq!(next(&mut caller), Some(Frame::plain(Op::Upgrade, 0)));
            caller.write_all(&Frame::plain(Op::Upgraded, 1).encode()).unwrap();
            writes.join().unwrap().unwrap();
            assert!(owner.memory.mapping().check_stamps(RID, 0, 64).unwrap());
        });
    }
}

#[test]
fn an_owner_that_is_not_the_one_that_was_meant_is_not_mapped_and_hears_so() {
    let owner = Scripted::new();
    let good = owner.reply();
    let other = "its owner serves another memory";
    for (reply, fds, why) in [
        (HelloReply { version: LANE_VERSION + 1, ..good }, 2, other),
        (HelloReply { uuid: SegmentUuid([9; 16]), ..good }, 2, other),
        (HelloReply { bytes: good.bytes * 2, ..good }, 2, other),
        (good, 1, "1 descriptors came instead of 2"),
        (good, 3, "3 descriptors came instead of 2"),
        (HelloReply { status: Status::WrongKey, ..good }, 2, "wrong access key"),
        (HelloReply { status: Status::Overloaded, ..good }, 0, "the peer has too many connections"),
    ] {
        let links = Links::new(mapping(), Box::new(Quiet)).unwrap();
        std::thread::scope(|threads| {
            let answers = threads.spawn(|| owner.answer(&reply, fds));
            let e = links.link(&owner.address, &soon()).unwrap_err();
            assert!(e.to_string().contains(why), "{e}");
            let mut caller = answers.join().unwrap();
            assert_eq!((next(&mut caller), next(&mut caller)), (Some(DETACHED), None), "it would be waited for: {why}");
        });
    }
}

#[test]
fn a_caller_does_not_wait_for_an_owner_that_gives_no_answer_once_it_is_interrupted() {
    let owner = Scripted::new();
    let options = LinkOptions { connect_timeout: Duration::from_secs(60), ..mapping() };
    let links = Links::new(options, Box::new(Quiet)).unwrap();
    let started = Instant::now();
    // The kernel lets callers in: the owner itself stands still.
    let deadline = Deadline::after(Duration::from_secs(60), &|| true);
    assert!(links.link(&owner.address, &deadline).is_err());
    assert!(started.elapsed() < Duration::from_secs(30));
}

#[test]
fn an_owner_that_reads_its_answers_late_gets_each_of_them_once() {
    // More than the connection holds and than wait for it.
    const QUESTIONS: u64 = 12_000;
    let owner = Scripted::new();
    let links = Links::new(mapping(), Box::new(Quiet)).unwrap();
    std::thread::scope(|threads| {
        let answers = threads.spawn(|| owner.answer(&owner.reply(), 2));
        let _link = links.link(&owner.address, &soon()).unwrap();
        let mut caller = answers.join().unwrap();
        let question = Frame { op: Op::Quiesce, epoch: 1, rid: RID.0, offset: 0, len: 1024, sequence: 0 };
        for sequence in 0..QUESTIONS {
            caller.write_all(&Frame { sequence, ..question }.encode()).unwrap();
        }
        let mut answered: Vec<u64> = (0..QUESTIONS)
            .map(|nth| next(&mut caller).unwrap_or_else(|| panic!("{nth} answers came")))
            .inspect(|answer| assert_eq!(answer.op, Op::Quiesced))
            .map(|answer| answer.sequence)
            .collect();
        answered.sort_unstable();
        assert!(answered.into_iter().eq(0..QUESTIONS));
    });
}

#[test]
fn an_owner_that_has_ended_is_not_written_to_though_a_child_of_it_keeps_the_connection() {
    let (_server, _memory, address) = owner(1 << 20, Quiet);
    let links = Links::new(mapping(), Box::new(Quiet)).unwrap();
    let link = links.link(&address, &soon()).unwrap();
    link.write(RID, 0, &[Source::new(&[5; 64])], &soon()).unwrap();
    let Kind::Shared(attachment) = &link.kind else { panic!("{}", link.reason()) };
    assert!(attachment.owner_ended() && !attachment.owner_ended(), "it is told once");
    assert!(link.is_over() && !attachment.has_hung_up());
    let e = link.write(Rid(RID.0 + 2), 4096, &[Source::new(&[5; 64])], &soon()).unwrap_err();
    assert!(e.settled && matches!(e.error, TransferError::Gone { .. }), "{e}");
}

/// Waits until no watcher has anything to do.
fn until_watchers_sleep() {
    let until = Instant::now() + Duration::from_secs(5);
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path());
    let read = |thread: &Path, what| std::fs::read_to_string(thread.join(what)).unwrap_or_default();
    // A thread that is woken runs at once, says the kernel.
    let is_awake = |thread: PathBuf| {
        read(&thread, "comm").trim_end() == "mooncake-watch"
            && read(&thread, "stat").rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('S'))
    };
    while threads().any(is_awake) {
        assert!(Instant::now() < until, "a watcher has no rest");
        std::thread::yield_now();
    }
}

/// Ends a link over a connection of the test's own, while the watcher sleeps on account of another one, and gives what
/// came over it behind the bytes of which it was full.
fn last_words(is_full: bool, before: impl FnOnce(&Arc<Attachment>)) -> Vec<Frame> {
    let (_server, _memory, address) = owner(1 << 20, Quiet);
    let (_other_server, _other_memory, other) = owner(1 << 20, Quiet);
    let links = Links::new(mapping(), Box::new(Quiet)).unwrap();
    let _other = links.link(&other, &soon()).unwrap();
    let link = links.link(&address, &soon()).unwrap();
    let Kind::Shared(attachment) = &link.kind else { panic!("{}", link.reason()) };
    let (mine, mut theirs) = UnixStream::pair().unwrap();
    mine.set_nonblocking(true).unwrap();
    let mut full = 0;
    while is_full && let Ok(count) = (&mine).write(&[0; 64]) {
        full += count;
    }
    attachment.talk.lock().pipe = AttachPipe::new(Arc::new(Guarded::new(mine)));
    before(attachment);
    drop(link);
    links.close();
    until_watchers_sleep();
    theirs.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    theirs.read_exact(&mut vec![0; full]).unwrap();
    std::iter::from_fn(|| next(&mut theirs)).collect()
}

#[test]
fn an_owner_hears_detached_of_what_is_unmapped_and_of_nothing_else() {
    assert_eq!(last_words(false, |_| {}), [DETACHED]);
    assert_eq!(last_words(true, |_| {}), [DETACHED], "as soon as it reads again");
    let mut kept = None;
    assert_eq!(last_words(false, |attachment| kept = Some(attachment.readable().clone())), [], "it is still mapped");
    let mut kept = None;
    let write = |attachment: &Arc<Attachment>| {
        let heard = attachment.talk.lock().peer.heard(&Frame::plain(Op::Upgraded, 1), &attachment.own_writes());
        assert_eq!(heard, Heard::Granted);
        kept = Some(attachment.writable(&soon()).unwrap());
    };
    assert_eq!(last_words(false, write), [], "it is still mapped");
    drop(kept);
}

#[test]
fn a_detached_that_is_left_to_a_sleeping_watcher_goes_out_as_soon_as_there_is_room_and_ends_with_its_connection() {
    let (_server, _memory, address) = owner(1 << 20, Quiet);
    let links = Links::new(mapping(), Box::new(Quiet)).unwrap();
    let link = links.link(&address, &soon()).unwrap();
    let Kind::Shared(attachment) = &link.kind else { panic!("{}", link.reason()) };
    for hangs_up in [false, true] {
        let (mine, mut theirs) = UnixStream::pair().unwrap();
        mine.set_nonblocking(true).unwrap();
        let mut full = 0;
        while let Ok(count) = (&mine).write(&[0; 64]) {
            full += count;
        }
        let stream = Arc::new(Guarded::new(mine));
        let (gone, mut pipe) = (Arc::downgrade(&stream), AttachPipe::new(stream));
        assert!(!pipe.send_last(&DETACHED).unwrap(), "there is room for it now");
        until_watchers_sleep();
        attachment.watcher.flush(1000, pipe);
        until_watchers_sleep();
        if !hangs_up {
            theirs.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            theirs.read_exact(&mut vec![0; full]).unwrap();
            assert_eq!((next(&mut theirs), next(&mut theirs)), (Some(DETACHED), None));
        }
        drop(theirs);
        let until = Instant::now() + Duration::from_secs(5);
        while gone.strong_count() > 0 {
            assert!(Instant::now() < until, "there is nobody left to tell");
            std::thread::yield_now();
        }
        until_watchers_sleep();
    }
}

#[test]
fn links_that_have_nothing_mapped_have_no_thread_and_watch_again_what_is_mapped_next() {
    struct Epochs(Sender<u16>);
    impl LinkEvents for Epochs {
        fn owner_gone(&self, _: SegmentUuid, _: Option<ProcessIdentity>) {}
        fn take_epoch(&self, question: EpochQuestion) {
            let _ = self.0.send(question.epoch().number);
        }
    }

    let (sender, epochs) = channel();
    let (server, _memory, address) = owner(1 << 20, Quiet);
    let links = Links::new(mapping(), Box::new(Epochs(sender))).unwrap();
    let until_held_by = |watcher: &Weak<Watcher>, holders: usize, why: &str| {
        let until = Instant::now() + Duration::from_secs(5);
        while watcher.strong_count() > holders {
            assert!(Instant::now() < until, "{} hold it: {why}", watcher.strong_count());
            std::thread::yield_now();
        }
    };
    let mut watcher = Weak::new();
    for epoch in 2..5 {
        let link = links.link(&address, &soon()).unwrap();
        let Kind::Shared(attachment) = &link.kind else { panic!("{}", link.reason()) };
        watcher = Arc::downgrade(&attachment.watcher);
        until_watchers_sleep();
        server.take_epoch(Epoch::numbered(epoch)).unwrap();
        assert_eq!(epochs.recv_timeout(Duration::from_secs(5)), Ok(epoch), "an owner that asks is heard");
        links.forget(address.uuid, &[], Epoch::numbered(epoch));
        drop(link);
        until_held_by(&watcher, 1, "its thread watches nothing");
    }
    drop(links);
    until_held_by(&watcher, 0, "the links are gone");
}
