//! Slow links, crowds, peers that froze, and numbers that cannot be meant.

mod memory;
mod memory_metadata;
mod relay;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memory::Memory;
use memory_metadata::MemoryMetadata;
use mooncake_memory::ForeignRange;
use mooncake_test_support::child_process::{ChildProcess, hear, role, say};
use mooncake_transfer_engine::{
    Engine, EngineError, EngineOptions, HttpMetadata, Metadata, Notify, Opcode, Request, Status,
};
use relay::{Fate, behind};

/// 100 MB/s or less.
const SLOW: Fate = Fate::Trickle(1 << 20, Duration::from_millis(10));

fn by_tcp() -> EngineOptions {
    EngineOptions { same_host: false, stripes: 1, ..EngineOptions::default() }
}

#[test]
fn a_list_of_large_writes_over_a_slow_link_arrives() {
    let (target, initiator) =
        (Engine::new("127.0.0.1", by_tcp()).unwrap(), Engine::new("127.0.0.1", by_tcp()).unwrap());
    let (there, here) = (Memory::new(48 << 20), Memory::filled(48 << 20, 3));
    target.register(&[there.range()], "*").unwrap();
    let peer = initiator.open(&behind(&target, SLOW, Fate::Pass)).unwrap();
    let part = |nth: usize, opcode| Request {
        opcode,
        local: here.range().part(nth << 23, 8 << 20),
        remote: there.addr() + (nth << 23) as u64,
    };
    let writes: Vec<_> = (0..6).map(|nth| part(nth, Opcode::Write)).collect();
    initiator.transfer(peer, &writes).unwrap();
    assert!(there.bytes() == here.bytes());
    assert_eq!(initiator.links()[0].failed, 0);
}

#[test]
fn a_batch_that_several_threads_end_leaves_its_message() {
    let (target, initiator) =
        (Engine::new("127.0.0.1", by_tcp()).unwrap(), Engine::new("127.0.0.1", by_tcp()).unwrap());
    let (there, here) = (Memory::new(1024), Memory::filled(1024, 3));
    target.register(&[there.range()], "*").unwrap();
    initiator.register(&[there.range()], "*").unwrap();
    let other = initiator.open(target.name()).unwrap();
    for round in 0..300 {
        let batch = initiator.allocate(16);
        // Neighbours go to different peers: each is ended alone.
        let one = |nth: usize| {
            let local = here.range().part(nth * 64, 64);
            let peer = if nth.is_multiple_of(2) { other } else { mooncake_transfer_engine::PeerId::SELF };
            (peer, Request { opcode: Opcode::Write, local, remote: there.addr() + nth as u64 * 64 })
        };
        let notify = Notify { name: round.to_string(), message: "done".into() };
        initiator.submit(batch, (0..16).map(one).collect(), Some((other, notify))).unwrap();
        assert_eq!(initiator.wait(batch, Duration::from_secs(20)).unwrap(), Status::Completed);
        initiator.free(batch).unwrap();
        let left: Vec<_> = target.take_notifies().into_iter().map(|notify| notify.name).collect();
        assert_eq!(left, [round.to_string()]);
    }
}

#[test]
fn lengths_that_cannot_be_meant_are_refused_before_anything_is_sent() {
    let target = Engine::new("127.0.0.1", by_tcp()).unwrap();
    let initiator = Engine::new("127.0.0.1", EngineOptions { stripes: 4, ..by_tcp() }).unwrap();
    let there = Memory::new(4096);
    target.register(&[there.range()], "*").unwrap();
    let peers = [initiator.open(target.name()).unwrap(), mooncake_transfer_engine::PeerId::SELF];
    let local = |addr: usize, len: usize| {
        // SAFETY: nothing may be touched; the kernel says so of what is not there.
        unsafe { ForeignRange::new(addr, len) }
    };
    let request = |addr, len| Request { opcode: Opcode::Write, local: local(addr, len), remote: there.addr() };
    for peer in peers {
        for wrong in [
            // Their sum is no more than 16 MiB if nobody looks.
            vec![request(4096, 1 << 63), request(4096, (1 << 63) + (16 << 20))],
            vec![request(usize::MAX - 100, 4096)],
            vec![request(4096, usize::MAX)],
        ] {
            let failed = initiator.transfer(peer, &wrong);
            assert!(matches!(failed, Err(EngineError::InvalidArgument(_))), "{failed:?}");
            let batch = initiator.allocate(2);
            initiator.submit(batch, wrong.iter().map(|request| (peer, *request)).collect(), None).unwrap();
            assert_eq!(initiator.wait(batch, Duration::from_secs(5)).unwrap(), Status::Failed);
            initiator.free(batch).unwrap();
        }
        for len in [1 << 46, usize::MAX >> 1, 1 << 63] {
            let began = Instant::now();
            assert!(initiator.transfer(peer, &[request(4096, len)]).is_err());
            assert!(began.elapsed() < Duration::from_secs(10), "{len:#x}: {:?}", began.elapsed());
        }
    }
}

#[test]
fn stripes_of_many_callers_at_once_need_few_threads() {
    let target = Engine::new("127.0.0.1", by_tcp()).unwrap();
    let initiator = Engine::new("127.0.0.1", EngineOptions { stripes: 16, ..by_tcp() }).unwrap();
    let (there, here) = (Memory::new(32 << 20), Memory::filled(32 << 20, 3));
    target.register(&[there.range()], "*").unwrap();
    let peer = initiator.open(&behind(&target, SLOW, Fate::Pass)).unwrap();
    let done = AtomicBool::new(false);
    let most = std::thread::scope(|scope| {
        let callers: Vec<_> =
            (0..8).map(|_| scope.spawn(|| initiator.transfer(peer, &[here.write_to(there.addr())]))).collect();
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !done.load(Ordering::Relaxed) {
                let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
                most = most.max(threads.filter(|task| name_starts(task, "mooncake-stripe")).count());
                std::thread::sleep(Duration::from_millis(1));
            }
            most
        });
        for caller in callers {
            caller.join().unwrap().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        watch.join().unwrap()
    });
    assert!(there.bytes() == here.bytes());
    assert!(most > 0 && most <= 16, "{most} threads beside the callers'");
}

fn name_starts(task: &std::fs::DirEntry, with: &str) -> bool {
    std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with(with))
}

#[test]
fn many_batches_for_one_peer_have_two_threads_and_no_more() {
    let mut target = ChildProcess::start("other", "target");
    let (said, here) = (target.hear(), Memory::new(1 << 20));
    let (name, addr) = said.split_once(' ').unwrap();
    let initiator = Engine::new("127.0.0.1", by_tcp()).unwrap();
    let (peer, write) = (initiator.open(name).unwrap(), here.write_to(addr.parse().unwrap()));
    // Nothing ends, so that all of them wait at once.
    target.stop();
    let before = batch_threads();
    let batches: Vec<_> = (0..100)
        .map(|_| {
            let batch = initiator.allocate(1);
            initiator.submit(batch, vec![(peer, write)], None).unwrap();
            batch
        })
        .collect();
    let most = (0..20).map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        batch_threads()
    });
    assert_eq!(most.max().unwrap() - before, 2);
    target.go_on();
    for batch in batches {
        assert_eq!(initiator.wait(batch, Duration::from_secs(60)).unwrap(), Status::Completed);
    }
}

fn batch_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks.filter(|task| name_starts(task, "mooncake-batch")).count()
}

#[test]
fn a_crowd_that_says_nothing_shuts_nobody_out() {
    let target = Engine::new("127.0.0.1", by_tcp()).unwrap();
    let initiator = Engine::new("127.0.0.1", by_tcp()).unwrap();
    let (there, here) = (Memory::new(4096), Memory::filled(4096, 3));
    target.register(&[there.range()], "*").unwrap();
    let peer = initiator.open(target.name()).unwrap();
    initiator.transfer(peer, &[here.write_to(there.addr())]).unwrap();
    for port in [target.port(), target.data_port()] {
        let crowd: Vec<_> = (0..4_500).map(|_| TcpStream::connect(("127.0.0.1", port))).collect();
        assert!(crowd.iter().filter(|one| one.is_ok()).count() > 4_096);
        // The connection that is known is not given up for strangers, and new ones are let in.
        for _ in 0..100 {
            initiator.transfer(peer, &[here.write_to(there.addr())]).unwrap();
        }
        assert_eq!(initiator.links()[0].failed, 0);
        let another = Engine::new("127.0.0.1", by_tcp()).unwrap();
        let to = another.open(target.name()).unwrap();
        another.transfer(to, &[here.write_to(there.addr())]).unwrap();
    }
}

/// Bytes of this process in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn beginnings_of_long_messages_take_no_more_memory_than_has_come() {
    let target = Engine::new("127.0.0.1", by_tcp()).unwrap();
    let before = resident();
    let crowd: Vec<_> = (0..400)
        .map(|_| {
            let mut stream = TcpStream::connect(("127.0.0.1", target.port())).unwrap();
            stream.write_all(&(1_u64 << 20).to_le_bytes()).unwrap();
            stream.write_all(&[2; 1_000]).unwrap();
            stream
        })
        .collect();
    // Whoever comes now is served: so they were looked at, most of them.
    for _ in 0..20 {
        Engine::new("127.0.0.1", by_tcp()).unwrap().probe(target.name()).unwrap();
    }
    let took = resident().saturating_sub(before) >> 10;
    drop(crowd);
    assert!(took < 8 << 10, "{took} KiB");
}

#[test]
fn messages_that_never_become_whole_take_little_memory() {
    let target = Engine::new("127.0.0.1", by_tcp()).unwrap();
    let before = resident();
    let almost = vec![2_u8; (1 << 20) - 1];
    let crowd: Vec<_> = (0..400)
        .map(|_| {
            let mut stream = TcpStream::connect(("127.0.0.1", target.port())).unwrap();
            stream.set_nonblocking(true).unwrap();
            stream.write_all(&(1_u64 << 20).to_le_bytes()).unwrap();
            let mut sent = 0;
            // What the target does not take fills its socket: then that is that.
            let until = Instant::now() + Duration::from_millis(200);
            while sent < almost.len() && Instant::now() < until {
                match stream.write(&almost[sent..]) {
                    Ok(count) => sent += count,
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => std::thread::yield_now(),
                    Err(_) => break,
                }
            }
            stream
        })
        .collect();
    let took = resident().saturating_sub(before) >> 20;
    drop(crowd);
    assert!(took < 150, "{took} MiB");
    Engine::new("127.0.0.1", by_tcp()).unwrap().probe(target.name()).unwrap();
}

#[test]
fn a_call_that_waits_for_a_connection_can_be_ended() {
    // Its queue is full: whoever knocks now waits.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let fillers: Vec<_> = (0..4).map(|_| TcpStream::connect_timeout(&address, Duration::from_millis(100))).collect();
    assert!(fillers.iter().any(Result::is_err));
    let initiator = Engine::new("127.0.0.1", by_tcp()).unwrap();
    let (began, here) = (Instant::now(), Memory::new(64));
    let enough = || began.elapsed() > Duration::from_millis(200);
    assert!(matches!(initiator.open_with(&address.to_string(), &enough), Err(EngineError::Interrupted)));
    let document = r#"{"name":"x","protocol":"tcp","tcp_data_port":PORT,"tcp_proto_version":2,"buffers":[]}"#;
    let name = relay::answering(document.replace("PORT", &address.port().to_string()));
    let peer = initiator.open(&name).unwrap();
    let failed = initiator.transfer_with(peer, &[here.write_to(4096)], &enough);
    assert!(matches!(failed, Err(EngineError::Interrupted)), "{failed:?}");
    assert!(began.elapsed() < Duration::from_millis(1_500), "{:?}", began.elapsed());
}

/// Not a test of its own.
#[test]
fn other() {
    if role().as_deref() == Some("target") {
        let target = Engine::new("127.0.0.1", EngineOptions::default()).unwrap();
        let there = Memory::new(1 << 20);
        target.register(&[there.range()], "*").unwrap();
        say(format_args!("{} {}", target.name(), there.addr()));
        hear();
        // What came before is done once this is answered.
        std::thread::sleep(Duration::from_millis(300));
        say(if there.bytes().iter().all(|byte| *byte == 1) { "as it was" } else { "changed" });
    }
}

#[test]
fn a_peer_that_froze_does_not_look_into_memory_that_was_given_back_to_its_owner() {
    let mut target = ChildProcess::start("other", "target");
    let said = target.hear();
    let (name, addr) = said.split_once(' ').unwrap();
    let options = EngineOptions { transfer_timeout: Duration::from_millis(500), ..EngineOptions::default() };
    let initiator = Engine::new("127.0.0.1", options).unwrap();
    let (peer, here) = (initiator.open(name).unwrap(), Memory::new(1 << 20));
    here.range().write_from(&vec![1; 1 << 20]).unwrap();
    let write = here.write_to(addr.parse().unwrap());
    initiator.transfer(peer, &[write]).unwrap();
    assert_eq!(initiator.links()[0].path, "same host");
    target.stop();
    let failed = initiator.transfer(peer, &[write]);
    assert!(matches!(failed, Err(EngineError::Timeout { .. })), "{failed:?}");
    // The call is over: the memory is for something else now.
    here.range().write_from(&vec![2; 1 << 20]).unwrap();
    target.go_on();
    target.say("look");
    assert_eq!(target.hear(), "as it was");
}

#[test]
fn ten_thousand_registrations_with_a_metadata_service_are_as_quick_last_as_first() {
    let (metadata, memory) = (MemoryMetadata::default(), Memory::new(10_000 * 64));
    let engine = Engine::with_metadata("many", by_tcp(), Box::new(metadata.clone()), "").unwrap();
    let told = || {
        let document = metadata.get("mooncake/ram/many").unwrap();
        document.map(|document| document.matches("\"addr\"").count())
    };
    let thousands: Vec<Duration> = (0..10)
        .map(|thousand| {
            let began = Instant::now();
            for nth in 0..1_000 {
                engine.register(&[memory.range().part((thousand * 1_000 + nth) * 64, 64)], "*").unwrap();
                if thousand == 0 && nth < 64 {
                    assert_eq!(told(), Some(nth + 1), "few are told one by one");
                }
            }
            began.elapsed()
        })
        .collect();
    assert!(thousands[9] <= 2 * thousands[0] + Duration::from_millis(50), "{thousands:?}");
    let until = Instant::now() + Duration::from_secs(10);
    while told() != Some(10_000) {
        assert!(Instant::now() < until, "{:?}", told());
        std::thread::sleep(Duration::from_millis(1));
    }
    engine.unregister_all(&(0..10_000).map(|nth| memory.range().addr() + nth * 64).collect::<Vec<_>>()).unwrap();
    engine.close().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(told(), None, "nothing is told after the end");
}

#[test]
fn a_metadata_service_that_misbehaves_is_an_error_in_time() {
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    let redirect = format!(
        "HTTP/1.1 302 Found\r\nLocation: http://{}/x\r\nContent-Length: 0\r\n\r\n",
        elsewhere.local_addr().unwrap()
    );
    let endless = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", 1_u64 << 40, "[".repeat(1 << 20));
    let answers = [
        redirect.clone(),
        redirect.replace("302 Found", "307 Temporary Redirect"),
        endless,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\nxx".into(),
        "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\u{fffd}\u{fffd}".into(),
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n".into(),
        "HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno".into(),
        "garbage".into(),
        String::new(),
    ];
    std::thread::scope(|scope| {
        for answer in &answers {
            scope.spawn(|| asks_a_service_that_answers(answer));
        }
    });
    assert!(elsewhere.accept().is_err(), "a redirect was followed");
}

fn asks_a_service_that_answers(answer: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/metadata", listener.local_addr().unwrap());
    let said = answer.to_owned();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let said = said.clone();
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(said.as_bytes());
                // And nothing more for as long as anybody may want to wait.
                std::thread::sleep(Duration::from_secs(8));
            });
        }
    });
    let (service, began) = (HttpMetadata::new(&url), Instant::now());
    let got = service.get("key");
    // A text that is no document is for the reader to refuse.
    let harmless = matches!(&got, Ok(Some(text)) if text.len() < 100);
    assert!(got.is_err() || harmless, "{answer:.60}: {got:?}");
    let failed = EngineError::to_string(&Engine::with_metadata("a", by_tcp(), Box::new(service), "").unwrap_err());
    assert!(failed.contains("metadata"), "{answer:.60}: {failed}");
    assert!(began.elapsed() < Duration::from_secs(8), "{answer:.60}: {:?}", began.elapsed());
}

/// What the target says of itself: its name, and a write of all that it lends.
fn met(target: &mut ChildProcess, here: &Memory) -> (String, Request) {
    let said = target.hear();
    let (name, addr) = said.split_once(' ').unwrap();
    (name.to_owned(), here.write_to(addr.parse().unwrap()))
}

#[test]
fn a_peer_that_stood_still_when_it_was_met_is_reached_within_the_host_afterwards() {
    let (mut target, here) = (ChildProcess::start("other", "target"), Memory::new(1 << 20));
    let (name, write) = met(&mut target, &here);
    let initiator = Engine::new("127.0.0.1", EngineOptions::default()).unwrap();
    let peer = initiator.open(&name).unwrap();
    target.stop();
    let enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let call = scope.spawn(|| initiator.transfer_with(peer, &[write], &|| enough.load(Ordering::SeqCst)));
        std::thread::sleep(Duration::from_millis(200));
        let began = Instant::now();
        initiator.links();
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        enough.store(true, Ordering::SeqCst);
        let ended = call.join().unwrap();
        assert!(matches!(ended, Err(EngineError::Interrupted)), "{ended:?}");
    });
    target.go_on();
    let until = Instant::now() + Duration::from_secs(10);
    while initiator.links()[0].path != "same host" {
        assert!(Instant::now() < until, "{:?}", initiator.links());
        initiator.transfer(peer, &[write]).unwrap();
    }
}

#[test]
fn a_caller_without_time_keeps_nobody_else_from_a_peer() {
    let (mut target, here) = (ChildProcess::start("other", "target"), Memory::new(1 << 20));
    let (name, write) = met(&mut target, &here);
    let initiator = Engine::new("127.0.0.1", by_tcp()).unwrap();
    let peer = initiator.open(&name).unwrap();
    target.stop();
    let began = Instant::now();
    let ended = initiator.transfer_with(peer, &[write], &|| began.elapsed() > Duration::from_millis(200));
    assert!(matches!(ended, Err(EngineError::Interrupted)), "{ended:?}");
    target.go_on();
    initiator.transfer(peer, &[write]).unwrap();
}

#[test]
fn of_peers_that_have_ended_no_connection_is_kept() {
    let here = Memory::new(1 << 20);
    for same_host in [true, false] {
        let options = EngineOptions { same_host, ..by_tcp() };
        let initiator = Engine::new("127.0.0.1", options).unwrap();
        let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = descriptors();
        let mut target = ChildProcess::start("other", "target");
        let (name, write) = met(&mut target, &here);
        let peer = initiator.open(&name).unwrap();
        let all = std::sync::Barrier::new(8);
        let call = || {
            for _ in 0..5 {
                all.wait();
                initiator.transfer(peer, &[write]).unwrap();
            }
        };
        std::thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(call))));
        assert!(descriptors() > before + 3, "several connections, and the pipes to the peer");
        drop(target);
        let until = Instant::now() + Duration::from_secs(10);
        while descriptors() > before {
            assert!(Instant::now() < until, "{} descriptors, {before} before", descriptors());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
