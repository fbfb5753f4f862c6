//! Peers that lie, dawdle, stop or say nothing that can be understood.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use mooncake_transfer_engine::{Engine, EngineError, EngineOptions, Notify, Status};

use crate::memory::Memory;

fn engine() -> Engine {
    Engine::new("127.0.0.1", EngineOptions::default()).unwrap()
}

fn impatient() -> Engine {
    let options = EngineOptions {
        transfer_timeout: Duration::from_secs(1),
        connect_timeout: Duration::from_secs(1),
        ..EngineOptions::default()
    };
    Engine::new("127.0.0.1", options).unwrap()
}

/// Answers one handshake after the other with a document that names a data port.
fn fake_target(data_port: u16, version: u32) -> String {
    fake_target_with(data_port, version, |_kind| true)
}

/// The same; questions of kinds that it is deaf to stay where they are.
fn fake_target_with(data_port: u16, version: u32, hears: fn(u8) -> bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = listener.local_addr().unwrap().to_string();
    let document = format!(
        r#"{{"name":"{name}","protocol":"tcp","tcp_data_port":{data_port},"tcp_proto_version":{version},
        "buffers":[{{"name":"{name}","addr":4096,"length":1048576}}]}}"#
    );
    std::thread::spawn(move || {
        let mut unheard = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut length = [0; 8];
            if stream.read_exact(&mut length).is_err() {
                continue;
            }
            let mut body = vec![0; u64::from_le_bytes(length) as usize];
            let _ = stream.read_exact(&mut body);
            if !hears(body[0]) {
                unheard.push(stream);
                continue;
            }
            let mut answer = (document.len() as u64 + 1).to_le_bytes().to_vec();
            answer.push(body[0]);
            answer.extend_from_slice(document.as_bytes());
            let _ = stream.write_all(&answer);
        }
    });
    name
}

/// A data port where `serve` has each connection.
fn fake_data(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = std::sync::Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream.unwrap()));
        }
    });
    port
}

/// Takes a write, header and all.
fn take_write(stream: &mut TcpStream, len: usize) {
    let mut all = vec![0; 24 + len];
    stream.read_exact(&mut all).unwrap();
}

#[test]
fn a_target_that_takes_everything_and_answers_nothing_is_never_a_success() {
    for opcode in ["write", "read", "batch"] {
        let port = fake_data(|mut stream| {
            let mut waste = [0; 4096];
            while stream.read(&mut waste).is_ok_and(|count| count > 0) {}
        });
        let (name, initiator, here) = (fake_target(port, 2), impatient(), Memory::filled(65_536, 1));
        let peer = initiator.open(&name).unwrap();
        let began = Instant::now();
        match opcode {
            "batch" => {
                let batch = initiator.allocate(1);
                initiator.submit(batch, vec![(peer, here.write_to(4096))], None).unwrap();
                assert_eq!(initiator.wait(batch, Duration::from_secs(5)).unwrap(), Status::Timeout);
                initiator.free(batch).unwrap();
            }
            _ => {
                let request = if opcode == "write" { here.write_to(4096) } else { here.read_from(4096) };
                let failed = initiator.transfer(peer, &[request]);
                assert!(matches!(failed, Err(EngineError::Timeout { .. })), "{opcode}: {failed:?}");
            }
        }
        let took = began.elapsed();
        assert!(took > Duration::from_millis(900) && took < Duration::from_millis(1_900), "{opcode}: {took:?}");
    }
}

#[test]
fn a_message_that_its_peer_would_refuse_is_refused_here() {
    let (target, initiator) = (engine(), engine());
    let peer = initiator.open(target.name()).unwrap();
    let of = |len: usize| Notify { name: "a".into(), message: "x".repeat(len) };
    let around = r#"{"name":"a","notify_msg":""}"#.len() + 2;
    let longest = of((1 << 20) - around);
    initiator.notify(peer, &longest).unwrap();
    assert_eq!(target.take_notifies(), [longest]);
    target.close().unwrap();
    // Nobody is asked: there is nobody.
    let refused = initiator.notify(peer, &of((1 << 20) - around + 1));
    assert!(matches!(refused, Err(EngineError::InvalidArgument(_))), "{refused:?}");
}

/// Does what is asked of it by its data port; of the messages that are left with it, it takes nothing.
fn deaf_to_messages() -> String {
    let port = fake_data(|mut stream| {
        take_write(&mut stream, 4096);
        stream.write_all(&[0, 0, 0, 0, 0x56, 0x54, 0x43, 0x4d]).unwrap();
        let _ = stream.read(&mut [0; 24]);
    });
    fake_target_with(port, 2, |kind| kind != 2)
}

#[test]
fn a_batch_whose_message_nobody_takes_is_done_by_its_deadline_and_at_its_engines_end() {
    for close in [false, true] {
        let seconds = if close { 20 } else { 1 };
        let options = EngineOptions {
            transfer_timeout: Duration::from_secs(seconds),
            connect_timeout: Duration::from_secs(20),
            ..EngineOptions::default()
        };
        let initiator = Engine::new("127.0.0.1", options).unwrap();
        let here = Memory::filled(4096, 1);
        let peer = initiator.open(&deaf_to_messages()).unwrap();
        let batch = initiator.allocate(1);
        let notify = Notify { name: "a".into(), message: "b".into() };
        let began = Instant::now();
        initiator.submit(batch, vec![(peer, here.write_to(4096))], Some((peer, notify))).unwrap();
        assert!(initiator.wait(batch, Duration::from_millis(300)).is_err(), "the message is on its way");
        if close {
            initiator.close().unwrap();
        }
        assert_eq!(initiator.wait(batch, Duration::from_secs(30)).unwrap(), Status::Completed);
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    }
}

#[test]
fn a_write_that_was_cut_off_or_answered_with_nonsense_is_no_success() {
    type Serve = fn(TcpStream);
    let serves: [Serve; 4] = [
        |mut stream| take_write(&mut stream, 65_536),
        |mut stream| {
            let _ = stream.read(&mut [0; 1000]);
        },
        |mut stream| {
            take_write(&mut stream, 65_536);
            let _ = stream.write_all(b"HTTP/1.1");
        },
        |mut stream| {
            take_write(&mut stream, 65_536);
            let _ = stream.write_all(&[0x56, 0x54]);
        },
    ];
    for (nth, serve) in serves.into_iter().enumerate() {
        let (name, initiator, here) = (fake_target(fake_data(serve), 2), impatient(), Memory::filled(65_536, 1));
        let peer = initiator.open(&name).unwrap();
        let failed = initiator.transfer(peer, &[here.write_to(4096)]);
        assert!(matches!(failed, Err(EngineError::Socket { .. } | EngineError::Malformed { .. })), "{nth}: {failed:?}");
    }
}

#[test]
fn a_target_of_version_one_acknowledges_by_a_byte_that_is_read_back() {
    let good = fake_data(|mut stream| {
        loop {
            let mut header = [0; 24];
            if stream.read_exact(&mut header).is_err() {
                return;
            }
            assert_eq!(header[16] & 0x80, 0, "version 1 was promised");
            let size = u64::from_le_bytes(header[..8].try_into().unwrap()) as usize;
            match header[16] {
                0 => stream.write_all(&vec![7; size]).unwrap(),
                _ => stream.read_exact(&mut vec![0; size]).unwrap(),
            }
        }
    });
    // It refuses as version 1 does: by hanging up.
    let refusing = fake_data(|mut stream| {
        let _ = stream.read(&mut [0; 24]);
    });
    let (initiator, here) = (impatient(), Memory::filled(10_000, 1));
    let peer = initiator.open(&fake_target(good, 1)).unwrap();
    initiator.transfer(peer, &[here.write_to(4096), here.write_to(20_000)]).unwrap();
    initiator.transfer(peer, &[here.read_from(4096)]).unwrap();
    assert!(here.bytes().iter().all(|byte| *byte == 7));
    let peer = initiator.open(&fake_target(refusing, 1)).unwrap();
    assert!(initiator.transfer(peer, &[here.write_to(4096)]).is_err());
}

#[test]
fn whoever_is_not_tried_again_so_soon_hears_what_was_wrong() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let (initiator, here) = (engine(), Memory::new(4096));
    let peer = initiator.open(&fake_target(free.local_addr().unwrap().port(), 2)).unwrap();
    drop(free);
    let first = initiator.transfer(peer, &[here.write_to(4096)]).unwrap_err().to_string();
    let second = initiator.transfer(peer, &[here.write_to(4096)]).unwrap_err().to_string();
    assert!(first.contains("refused") && !first.contains("so soon"), "{first}");
    assert!(second.contains("so soon") && second.contains("refused"), "{second}");
}

/// Whether the other side ends the connection within a time, whatever it says before.
fn ends(mut stream: TcpStream, within: Duration) -> bool {
    stream.set_read_timeout(Some(within)).unwrap();
    let began = Instant::now();
    let mut waste = [0; 4096];
    while began.elapsed() < within {
        match stream.read(&mut waste) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
    false
}

#[test]
fn garbage_on_every_port_ends_its_connection_and_others_are_served() {
    let target = engine();
    let there = Memory::new(1 << 20);
    target.register(&[there.range()], "*").unwrap();
    let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let mut dice = 1_u64;
    for round in 0..60 {
        let mut garbage = vec![0; 24 + round * 37];
        for byte in &mut garbage {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (dice >> 33) as u8;
        }
        for port in [target.port(), target.data_port()] {
            let mut stream = TcpStream::connect(at(port)).unwrap();
            let _ = stream.write_all(&garbage);
            assert!(ends(stream, Duration::from_millis(1_000)), "round {round}");
        }
    }
    // Lengths that overflow, and that cannot be meant.
    for length in [0, (1 << 20) + 1, u64::MAX, 1 << 63] {
        let mut stream = TcpStream::connect(at(target.port())).unwrap();
        stream.write_all(&length.to_le_bytes()).unwrap();
        assert!(ends(stream, Duration::from_secs(1)), "{length}");
    }
    for (size, addr) in [(u64::MAX, 1), (1, u64::MAX), (1 << 40, there.addr()), (2, there.addr() + (1 << 20) - 1)] {
        let mut header = [size.to_le_bytes(), addr.to_le_bytes(), [0; 8]].concat();
        header[16] = 0x81;
        let mut stream = TcpStream::connect(at(target.data_port())).unwrap();
        stream.write_all(&header).unwrap();
        assert!(ends(stream, Duration::from_secs(1)), "{size} at {addr}");
    }
    let initiator = engine();
    let (peer, here) = (initiator.open(target.name()).unwrap(), Memory::filled(1 << 20, 9));
    initiator.transfer(peer, &[here.write_to(there.addr())]).unwrap();
    assert!(there.bytes() == here.bytes());
}

#[test]
fn whoever_dawdles_is_cut_and_keeps_nobody_waiting() {
    let target = engine();
    let there = Memory::new(1 << 20);
    target.register(&[there.range()], "*").unwrap();
    let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let mut slow: Vec<TcpStream> = Vec::new();
    for port in [target.port(), target.data_port()] {
        for bytes in [0, 1, 7] {
            let mut stream = TcpStream::connect(at(port)).unwrap();
            stream.write_all(&vec![1; bytes]).unwrap();
            slow.push(stream);
        }
    }
    for _ in 0..300 {
        slow.push(TcpStream::connect(at(target.data_port())).unwrap());
    }
    let (initiator, here) = (engine(), Memory::filled(4096, 9));
    let began = Instant::now();
    let peer = initiator.open(target.name()).unwrap();
    for _ in 0..100 {
        initiator.transfer(peer, &[here.write_to(there.addr())]).unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    for stream in slow {
        assert!(ends(stream, Duration::from_secs(7)));
    }
}

#[test]
fn the_socket_of_the_host_believes_nobody_without_proof() {
    let target = engine();
    let there = Memory::new(1 << 20);
    target.register(&[there.range()], "*").unwrap();
    let name = unix_name(&target);
    let connect = || {
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
        let stream = UnixStream::connect_addr(&address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        stream
    };
    let mut hello = [0; 64];
    hello[..8].copy_from_slice(b"MCRSHOST");
    hello[8] = 3;
    let wrong_secret = {
        let mut hello = hello;
        hello[16..32].copy_from_slice(&id_of(&target));
        let mine = [5_u8; 16];
        hello[32..40].copy_from_slice(&(mine.as_ptr().expose_provenance() as u64).to_le_bytes());
        hello[40..56].copy_from_slice(&[6; 16]);
        (hello, mine)
    };
    for bytes in [&hello[..], &wrong_secret.0[..], &[9; 64][..]] {
        let mut stream = connect();
        stream.write_all(bytes).unwrap();
        let mut heard = Vec::new();
        // Nothing, or that it is a stranger; then the end.
        let _ = stream.read_to_end(&mut heard);
        assert!(heard.is_empty() || heard[8] == 2, "{heard:?}");
    }
    assert_eq!(wrong_secret.1, [5; 16]);
}

#[test]
fn a_long_description_reaches_whoever_takes_it_slowly() {
    // More of it than sockets hold.
    let (name, count) = ("n".repeat(250), 50_000);
    let target = Engine::new(&name, EngineOptions::default()).unwrap();
    let there = Memory::new(count * 64);
    let parts: Vec<_> = (0..count).map(|nth| there.range().part(nth * 64, 64)).collect();
    target.register(&parts, "*").unwrap();
    let mut stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], target.port()))).unwrap();
    stream.write_all(&[3, 0, 0, 0, 0, 0, 0, 0, 1, b'{', b'}']).unwrap();
    let mut length = [0; 8];
    stream.read_exact(&mut length).unwrap();
    let mut all = vec![0; u64::from_le_bytes(length) as usize];
    assert!(all.len() > 12 << 20, "{}", all.len());
    let parts = all.len().div_ceil(70);
    for part in all.chunks_mut(parts) {
        stream.read_exact(part).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    let document = std::str::from_utf8(&all[1..]).unwrap();
    assert_eq!(document.matches("\"addr\":").count(), count);
}

/// What the segment document says of the target's own extras.
fn extras(target: &Engine) -> String {
    let mut stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], target.port()))).unwrap();
    stream.write_all(&[3, 0, 0, 0, 0, 0, 0, 0, 1, b'{', b'}']).unwrap();
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    String::from_utf8(heard[9..].to_vec()).unwrap()
}

fn unix_name(target: &Engine) -> String {
    let json = extras(target);
    let from = json.find("\"unix\":\"").unwrap() + 8;
    json[from..].split('"').next().unwrap().to_owned()
}

fn id_of(target: &Engine) -> [u8; 16] {
    let json = extras(target);
    let from = json.find("\"id\":\"").unwrap() + 6;
    std::array::from_fn(|at| u8::from_str_radix(&json[from + 2 * at..from + 2 * at + 2], 16).unwrap())
}

#[test]
fn a_target_that_ended_is_an_error_at_once_and_its_successor_is_found() {
    let target = engine();
    let there = Memory::new(1 << 20);
    target.register(&[there.range()], "*").unwrap();
    let (initiator, here) = (impatient(), Memory::filled(4096, 9));
    let peer = initiator.open(target.name()).unwrap();
    initiator.transfer(peer, &[here.write_to(there.addr())]).unwrap();
    let port = target.port();
    target.close().unwrap();
    let began = Instant::now();
    for request in [here.write_to(there.addr()), here.read_from(there.addr())] {
        assert!(initiator.transfer(peer, &[request]).is_err());
    }
    assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
    // Another life under the same name.
    let again = (1..1_000).find_map(|span| {
        let options = EngineOptions { ports: port..=port + 1 + span / 10, ..EngineOptions::default() };
        Engine::new("127.0.0.1", options).ok().filter(|again| again.port() == port)
    });
    let again = again.expect("the port is free");
    again.register(&[there.range()], "*").unwrap();
    std::thread::sleep(Duration::from_millis(1_100));
    initiator.transfer(peer, &[here.write_to(there.addr())]).unwrap();
    assert!(there.bytes()[..4096] == *here.bytes());
}
