use std::time::Duration;

use mooncake_memory::{Source, Verify};

use super::super::fixture::{Quiet, mapping, owner};
use super::super::view::View;
use super::super::{Kind, Links};
use super::*;

const RID: u64 = 1 << 48 | 2;

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
    let link = links.link(&address, &Wait::until(Instant::now() + Duration::from_secs(5))).unwrap();
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
    use std::io::{Read, Write};
    let (_server, _memory, address) = owner(1 << 20, Quiet);
    let links = Links::new(mapping(), Box::new(Quiet)).unwrap();
    let link = links.link(&address, &Wait::until(Instant::now() + Duration::from_secs(5))).unwrap();
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
