//! Whoever cannot say hello is out within a second, costs no thread, and does
//! not fill the log, which is that of the thread that started the server.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mooncake_memory::Source;
use mooncake_segment::{Path, Paths};
use support::*;

static WARNINGS: AtomicUsize = AtomicUsize::new(0);

struct Count;

impl tracing::Subscriber for Count {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        WARNINGS.fetch_add(1, Ordering::SeqCst);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn garbage_is_closed_within_a_second_with_one_line_and_no_thread() {
    // Of this thread, as Python has it: the threads of a server log where the thread does that started it.
    let _logging = tracing::subscriber::set_default(Count);
    let owner = Owner::new(MIB);
    let before = threads();
    let connect = || TcpStream::connect(owner.server.tcp_addr()).unwrap();

    let started = Instant::now();
    let mut all: Vec<TcpStream> = Vec::new();
    for i in 0..60 {
        let mut stream = connect();
        let _ = match i % 4 {
            0 => stream.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
            // Half a hello, and then nothing.
            1 => stream.write(&mooncake_wire::LANE_PREFACE),
            // The right beginning and 56 bytes of rubbish.
            2 => stream.write(&[&mooncake_wire::LANE_PREFACE[..], &[0x5a; 56]].concat()),
            // Nothing at all.
            _ => Ok(0),
        };
        all.push(stream);
    }
    assert_eq!(threads(), before, "strangers cost no thread");
    assert_eq!(owner.server.lanes(), 0);
    // An honest peer is served meanwhile.
    let (links, _noticed) = links(Paths::only(Path::Tcp));
    let link = links.link(&owner.address(), &soon()).unwrap();
    link.write(rid(1, 1), 0, &[Source::new(b"served")], &soon()).unwrap();

    for mut stream in all {
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        // Closed, by an end of stream or a reset.
        assert!(matches!(stream.read(&mut [0; 64]), Ok(0) | Err(_)));
    }
    assert!(started.elapsed() < Duration::from_millis(1500), "{:?}", started.elapsed());
    assert_eq!(WARNINGS.load(Ordering::SeqCst), 1, "one line a peer in ten seconds");

    // A good hello followed by garbage ends the lane, not the server.
    drop(link);
    drop(links);
    let until = Instant::now() + Duration::from_secs(2);
    while owner.server.lanes() > 0 {
        assert!(Instant::now() < until, "a closed lane's thread ends");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(WARNINGS.load(Ordering::SeqCst), 1);
}
