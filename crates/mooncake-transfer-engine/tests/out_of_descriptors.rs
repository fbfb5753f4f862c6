//! An engine that may not open any more descriptors goes on serving.

mod memory;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use memory::Memory;
use mooncake_test_support::child_process::{ChildProcess, hear, role, say};
use mooncake_transfer_engine::{Engine, EngineOptions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Not a test of its own.
#[test]
fn other() {
    if role().as_deref() == Some("target") {
        let target = Engine::new("127.0.0.1", EngineOptions::default()).unwrap();
        let there = Memory::new(4096);
        target.register(&[there.range()], "*").unwrap();
        let used = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
        let maximum = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: Some(used + 50), maximum }).unwrap();
        say(format_args!("{} {} {}", target.name(), target.data_port(), there.addr()));
        hear();
    }
}

#[test]
fn peers_that_are_idle_are_let_go_for_those_that_knock_when_descriptors_run_out() {
    let mut target = ChildProcess::start("other", "target");
    let said = target.hear();
    let [name, port, addr] = said.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let (port, addr): (u16, u64) = (port.parse().unwrap(), addr.parse().unwrap());
    let mut read = [1_u64.to_le_bytes(), addr.to_le_bytes(), [0; 8]].concat();
    read[16] = 0x80;
    // Each is served once, and then says nothing more, more of them than there are descriptors.
    let idle: Vec<TcpStream> = (0..110)
        .map(|nth| {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
            stream.write_all(&read).unwrap();
            let served = stream.read_exact(&mut [0; 2]);
            assert!(served.is_ok(), "number {nth}: {served:?}");
            stream
        })
        .collect();
    let (initiator, here, began) =
        (Engine::new("127.0.0.1", EngineOptions::default()).unwrap(), Memory::filled(4096, 3), Instant::now());
    initiator.probe(name).unwrap();
    let peer = initiator.open(name).unwrap();
    initiator.transfer(peer, &[here.write_to(addr)]).unwrap();
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    drop(idle);
}
