//! A peer with an address in each of several networks: transfers go over all of them, and over the others when one
//! fails.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use mooncake_transfer_engine::{Engine, EngineOptions};

use crate::memory::Memory;
use crate::relay::{answering, document_of};

const MIB: usize = 1 << 20;

fn options(stripes: usize) -> EngineOptions {
    EngineOptions { same_host: false, stripes, tcp_address_pause: Duration::from_secs(60), ..EngineOptions::default() }
}

fn listening_at(addresses: &[&str]) -> Engine {
    let tcp_addresses: Vec<IpAddr> = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
    Engine::new("127.0.0.1", EngineOptions { tcp_addresses, ..options(1) }).unwrap()
}

fn reason(initiator: &Engine) -> String {
    initiator.links()[0].reason.clone()
}

/// The name of a peer that is `target`, and says that its data is at these addresses.
fn told(target: &Engine, addresses: &[SocketAddr]) -> String {
    let list: Vec<String> = addresses.iter().map(|at| format!("\"{at}\"")).collect();
    let ours = "\"mooncake_rs\":{";
    answering(document_of(target).replace(ours, &format!("{ours}\"tcp_addresses\":[{}],", list.join(","))))
}

/// A way to the target that goes down after so many bytes of its first connection: the rest waits until it is released,
/// and the target learns nothing of the other end. It says when the target is done with that.
fn link_that_goes_down(target: &Engine, after: usize) -> (SocketAddr, Sender<()>, Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, to) = (listener.local_addr().unwrap(), target.data_port());
    let (release, released) = channel::<()>();
    let (done, is_done) = channel();
    std::thread::spawn(move || {
        let near = listener.accept().unwrap().0;
        let far = TcpStream::connect(("127.0.0.1", to)).unwrap();
        let (back_from, back_to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        let back = std::thread::spawn(move || pass(back_from, back_to));
        pass(near.try_clone().unwrap().take(after as u64), far.try_clone().unwrap());
        let mut held = Vec::new();
        let _ = (&near).read_to_end(&mut held);
        let _ = released.recv();
        let _ = (&far).write_all(&held);
        let _ = far.shutdown(std::net::Shutdown::Write);
        back.join().unwrap();
        let _ = done.send(());
    });
    (at, release, is_done)
}

/// Passes on what comes until it ends; who does not want it any more stops nothing.
fn pass(mut from: impl Read, mut into: impl Write) {
    let mut some = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut some) {
        let _ = into.write_all(&some[..count]);
    }
}

#[test]
fn requests_of_any_size_and_number_go_both_ways_over_all_addresses() {
    let (target, initiators) = (listening_at(&["127.0.0.2", "127.0.0.3"]), [1, 4].map(options));
    for options in initiators {
        let initiator = Engine::new("127.0.0.1", options).unwrap();
        let peer = initiator.open(target.name()).unwrap();
        for size in [1, 4096, MIB, MIB + 1, 5 * MIB + 77, 33 * MIB] {
            let (here, there, back) = (Memory::filled(size, size as u64), Memory::new(size), Memory::new(size));
            target.register(&[there.range()], "*").unwrap();
            initiator.transfer(peer, &[here.write_to(there.addr())]).unwrap();
            assert!(there.bytes() == here.bytes(), "{size}");
            initiator.transfer(peer, &[back.read_from(there.addr())]).unwrap();
            assert!(back.bytes() == here.bytes(), "{size}");
            target.unregister(there.range().addr()).unwrap();
        }
        // Many in one call, of both kinds by turns, none of them large.
        let (count, each) = (3_000, 1_000);
        let (here, there) = (Memory::filled(count * each, 3), Memory::new(count * each));
        let (gives, back) = (Memory::filled(count * each, 4), Memory::new(count * each));
        target.register(&[there.range(), gives.range()], "*").unwrap();
        let part = |of: &Memory, nth: usize| of.range().part(nth * each, each);
        let requests: Vec<_> = (0..count)
            .flat_map(|nth| {
                let at = (nth * each) as u64;
                let mut write = here.write_to(there.addr() + at);
                let mut read = back.read_from(gives.addr() + at);
                (write.local, read.local) = (part(&here, nth), part(&back, nth));
                if nth < count / 2 { vec![write, read] } else { vec![read, write] }
            })
            .collect();
        initiator.transfer(peer, &requests).unwrap();
        assert!(there.bytes() == here.bytes() && back.bytes() == gives.bytes());
        target.unregister_all(&[there.range().addr(), gives.range().addr()]).unwrap();
        assert!(reason(&initiator).ends_with("over 2 addresses"), "{}", reason(&initiator));
    }
}

#[test]
fn memory_that_is_not_lent_is_refused_whatever_the_number_of_addresses() {
    let target = listening_at(&["127.0.0.2", "127.0.0.3"]);
    let initiator = Engine::new("127.0.0.1", options(1)).unwrap();
    let peer = initiator.open(target.name()).unwrap();
    let (here, there, lent) = (Memory::new(8 * MIB), Memory::new(8 * MIB), Memory::new(8 * MIB));
    target.register(&[lent.range()], "*").unwrap();
    for request in [here.write_to(there.addr()), here.read_from(there.addr())] {
        let error = initiator.transfer(peer, &[request]).unwrap_err();
        assert_eq!(error.code(), -3, "{error}");
    }
    initiator.transfer(peer, &[here.write_to(lent.addr())]).unwrap();
    assert!(reason(&initiator).ends_with("over 2 addresses"), "{}", reason(&initiator));
}

#[test]
fn of_a_connection_that_failed_nothing_lands_once_the_others_have_finished_its_write() {
    let target = Engine::new("127.0.0.1", options(1)).unwrap();
    let initiator = Engine::new("127.0.0.1", options(1)).unwrap();
    let size = 24 * MIB;
    let (here, there) = (Memory::filled(size, 1), Memory::new(size));
    target.register(&[there.range()], "*").unwrap();
    let (down, release, done) = link_that_goes_down(&target, 2 * MIB);
    let near = SocketAddr::from(([127, 0, 0, 1], target.data_port()));
    let peer = initiator.open(&told(&target, &[down, near])).unwrap();
    let began = Instant::now();
    initiator.transfer(peer, &[here.write_to(there.addr())]).unwrap();
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(there.bytes() == here.bytes());
    assert!(reason(&initiator).contains("over 1 of 2 addresses"), "{}", reason(&initiator));
    // The target's application has its memory again.
    there.range().write_from(&vec![9; size]).unwrap();
    release.send(()).unwrap();
    done.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(there.bytes().iter().all(|byte| *byte == 9));
}

#[test]
fn a_transfer_loses_no_time_at_an_address_where_nobody_answers() {
    let target = Engine::new("127.0.0.1", options(1)).unwrap();
    let initiator = Engine::new("127.0.0.1", options(1)).unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let near = SocketAddr::from(([127, 0, 0, 1], target.data_port()));
    for (nth, size) in [4096, 8 * MIB].into_iter().enumerate() {
        let (here, there) = (Memory::filled(size, 1), Memory::new(size));
        target.register(&[there.range()], "*").unwrap();
        let name = told(&target, &[closed, near]);
        let peer = initiator.open(&name).unwrap();
        let began = Instant::now();
        initiator.transfer(peer, &[here.write_to(there.addr())]).unwrap();
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        assert!(there.bytes() == here.bytes());
        assert!(initiator.links()[nth].reason.contains("over 1 of 2 addresses"));
    }
}
