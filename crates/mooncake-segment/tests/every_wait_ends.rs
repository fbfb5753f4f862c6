//! Deadlines, standstills and interruptions end calls in time.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mooncake_ids::SegmentUuid;
use mooncake_memory::{Destination, Source};
use mooncake_os::{Deadline, ProcessIdentity};
use mooncake_segment::{LinkError, LinkEvents, LinkOptions, Links, Path, Paths, SegmentAddress, TransferError};

use crate::support::*;

struct Ignore;

impl LinkEvents for Ignore {
    fn owner_gone(&self, _: SegmentUuid, _: Option<ProcessIdentity>) {}
    fn take_epoch(&self, _: mooncake_segment::EpochQuestion) {}
}

fn tcp_links(stall_timeout: Duration) -> Links {
    let options = LinkOptions { paths: Paths::only(Path::Tcp), stall_timeout, ..LinkOptions::new(WRITER) };
    Links::new(options, Box::new(Ignore)).unwrap()
}

fn about(elapsed: Duration, ms: u64) -> bool {
    (ms..ms + 250).contains(&(elapsed.as_millis() as u64 + 5))
}

#[test]
fn a_stopped_owner_costs_one_standstill_per_read_and_write() {
    let (owner, address) = start_owner(64 * MIB);
    let links = tcp_links(Duration::from_millis(400));
    let link = links.link(&address, &soon()).unwrap();
    let data = pattern(32 * MIB, 1);
    link.write(rid(1, 1), 0, &[Source::new(&data)], &soon()).unwrap();
    owner.stop();
    let mut back = vec![0; data.len()];
    let started = Instant::now();
    let e = link.read(rid(1, 1), 0, &mut [Destination::new(&mut back)], None, &soon()).unwrap_err();
    assert!(matches!(e, TransferError::Timeout { .. }), "{e}");
    assert!(about(started.elapsed(), 400), "{:?}", started.elapsed());
    let started = Instant::now();
    let e = link.write(rid(1, 2), 0, &[Source::new(&data)], &soon()).unwrap_err();
    assert!(started.elapsed() < Duration::from_millis(1600), "{:?}", started.elapsed());
    assert!(matches!(e.error, TransferError::Timeout { .. } | TransferError::Broken { .. }), "{e}");
    owner.go_on();
}

#[test]
fn a_tcp_write_that_was_sent_and_not_answered_is_not_settled() {
    let (owner, address) = start_owner(64 * MIB);
    let links = tcp_links(Duration::from_millis(250));
    let link = links.link(&address, &soon()).unwrap();
    // All of it lies in the sockets, or a part.
    for (at, len) in [(1, 4096), (2, 32 * MIB)] {
        let data = pattern(len, 1);
        // The lane that the next one uses.
        link.write(rid(1, 2 * at), 0, &[Source::new(&data)], &soon()).unwrap();
        owner.stop();
        let e = link.write(rid(1, 2 * at + 1), 0, &[Source::new(&data)], &soon()).unwrap_err();
        assert!(matches!(e.error, TransferError::Timeout { .. }), "{e}");
        assert!(!e.settled, "{len} bytes may still land: {e}");
        owner.go_on();
    }
}

#[test]
fn a_deadline_and_an_interruption_end_a_call_within_100_ms() {
    let (owner, address) = start_owner(MIB);
    let links = tcp_links(Duration::from_secs(30));
    let link = links.link(&address, &soon()).unwrap();
    link.write(rid(1, 1), 0, &[Source::new(b"x")], &soon()).unwrap();
    owner.stop();
    let started = Instant::now();
    let short = Deadline::at(started + Duration::from_millis(150));
    let e = link.read(rid(1, 1), 0, &mut [Destination::new(&mut [0])], None, &short).unwrap_err();
    assert!(matches!(e, TransferError::Timeout { .. }), "{e}");
    assert!(about(started.elapsed(), 150), "{:?}", started.elapsed());

    // The write needs a new lane, whose owner does not answer the hello either.
    for write in [false, true] {
        let flag = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(200));
                flag.store(true, Ordering::SeqCst);
            });
            let started = Instant::now();
            let interrupted = || flag.load(Ordering::SeqCst);
            let wait = Deadline::after(Duration::from_secs(30), &interrupted);
            let e = if write {
                link.write(rid(1, 2), 0, &[Source::new(b"x")], &wait).unwrap_err().error
            } else {
                link.read(rid(1, 1), 0, &mut [Destination::new(&mut [0])], None, &wait).unwrap_err()
            };
            assert!(matches!(e, TransferError::Interrupted), "{e}");
            assert!(about(started.elapsed(), 200), "{:?}", started.elapsed());
        });
    }
    owner.go_on();
}

#[test]
fn a_peer_that_does_not_answer_costs_one_timeout_and_is_then_avoided() {
    // Its queue accepts the connection, nobody ever answers the hello.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = SegmentAddress {
        uuid: SegmentUuid([1; 16]),
        bytes: MIB,
        name: "silent".into(),
        boot_id: [0; 16],
        unix_socket: String::new(),
        tcp: vec![listener.local_addr().unwrap().to_string()],
        access_key: 1,
        process: None,
        tier_file_blocks: 0,
    };
    let options = LinkOptions { connect_timeout: Duration::from_millis(300), ..LinkOptions::new(WRITER) };
    let links = Links::new(options, Box::new(Ignore)).unwrap();
    let started = Instant::now();
    assert!(matches!(links.link(&address, &soon()), Err(LinkError::NoPath { .. })));
    assert!(about(started.elapsed(), 300), "{:?}", started.elapsed());
    let started = Instant::now();
    assert!(matches!(links.link(&address, &soon()), Err(LinkError::Avoided { .. })));
    assert!(started.elapsed() < Duration::from_millis(50));
}

#[test]
fn a_stopped_owner_of_a_mapped_segment_cannot_hold_a_first_put_for_ever() {
    let (owner, address) = start_owner(MIB);
    let (links, _noticed) = links(Paths::ALL);
    let link = links.link(&address, &soon()).unwrap();
    assert_eq!(link.path(), Path::SharedMemory);
    owner.stop();
    let started = Instant::now();
    let short = Deadline::at(started + Duration::from_millis(200));
    let e = link.write(rid(1, 1), 0, &[Source::new(b"x")], &short).unwrap_err();
    assert!(e.settled && matches!(e.error, TransferError::Timeout { .. }), "{e}");
    assert!(about(started.elapsed(), 200), "{:?}", started.elapsed());
    let interrupted = Deadline { interrupted: &|| true, ..soon() };
    let e = link.write(rid(1, 1), 0, &[Source::new(b"x")], &interrupted).unwrap_err();
    assert!(e.settled && matches!(e.error, TransferError::Interrupted), "{e}");
    owner.go_on();
    link.write(rid(1, 1), 0, &[Source::new(b"x")], &soon()).unwrap();
}

#[test]
fn a_first_put_that_waits_for_an_owner_hears_of_its_end() {
    let (mut owner, address) = start_owner(MIB);
    let (links, _noticed) = links(Paths::ALL);
    let link = links.link(&address, &soon()).unwrap();
    owner.stop();
    std::thread::scope(|scope| {
        let (waiting, waits) = std::sync::mpsc::channel();
        let writer = scope.spawn(|| {
            let interrupted = move || waiting.send(()).is_err();
            link.write(rid(1, 1), 0, &[Source::new(b"x")], &Deadline { interrupted: &interrupted, ..soon() })
                .unwrap_err()
        });
        waits.recv().unwrap();
        owner.kill();
        // The receiver stays: nobody interrupts.
        let e = writer.join().unwrap();
        assert!(e.settled && matches!(e.error, TransferError::Gone { .. }), "{e}");
        drop(waits);
    });
}
