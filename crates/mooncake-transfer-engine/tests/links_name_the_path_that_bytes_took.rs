//! Reports and logs name the path that bytes really took, and why; a device's memory goes by TCP at once.

use mooncake_test_support::fake_cuda::FakeCuda;
use mooncake_test_support::log_capture;
use mooncake_transfer_engine::{Engine, EngineOptions, LinkReport, Opcode, Request};

use crate::memory;
use crate::memory::Memory;

const ENGINE: &str = "mooncake_transfer_engine";

const LEN: usize = 300_000;

fn engine(same_host: bool) -> Engine {
    Engine::new("127.0.0.1", EngineOptions { same_host, ..EngineOptions::default() }).unwrap()
}

fn link(engine: &Engine) -> LinkReport {
    engine.links().remove(0)
}

/// The lines of the log that tell of a path, without the peer's name.
fn links_of(told: &[String]) -> Vec<String> {
    let link = |line: &String| line.contains("message=link").then(|| line[line.find("path=").unwrap()..].to_owned());
    told.iter().filter_map(link).collect()
}

#[test]
fn memory_of_a_device_goes_by_tcp_and_reports_and_the_log_say_so() {
    let fake = FakeCuda::load();
    let (target, initiator) = (engine(true), engine(true));
    let (host, lent) = (Memory::filled(LEN, 1), Memory::new(LEN));
    let (device, lent_device) = (fake.holding(0, host.bytes()), fake.alloc(0, LEN));
    target.register(&[lent.range(), lent_device.range()], "*").unwrap();
    initiator.register(&[device.range()], "cuda:0").unwrap();
    let peer = initiator.open(target.name()).unwrap();
    let remote = lent_device.range().addr() as u64;
    let mut by_path = [0, 0];
    let told = log_capture::told(ENGINE, || {
        for (local, remote, path, reason) in [
            (host.range(), lent.addr(), 0, "copies between processes"),
            (device.range(), lent.addr(), 1, "device memory here"),
            (host.range(), remote, 1, "device memory at the peer"),
            (device.range(), remote, 1, "device memory here"),
            (host.range(), remote, 1, "device memory at the peer"),
            (host.range(), lent.addr(), 0, "copies between processes"),
        ] {
            for opcode in [Opcode::Write, Opcode::Read] {
                initiator.transfer(peer, &[Request { opcode, local, remote }]).unwrap();
                by_path[path] += LEN as u64;
                let name = ["same host", "tcp"][path];
                let said = link(&initiator);
                assert_eq!((said.path, &*said.reason), (name, reason));
                let expected = ["same host", "tcp"].into_iter().zip(by_path).filter(|(_, bytes)| *bytes > 0);
                assert_eq!(said.by_path, expected.collect::<Vec<_>>());
                assert_eq!((said.bytes, said.failed), (by_path.iter().sum(), 0));
            }
        }
    });
    assert!(lent_device.read() == host.bytes() && lent.bytes() == host.bytes());
    let expected = [
        r#"path="same host" reason="copies between processes""#,
        r#"path="tcp" reason="device memory here""#,
        r#"path="tcp" reason="device memory at the peer""#,
    ];
    assert_eq!(links_of(&told), expected, "each once");
    let shown = initiator.show_links(true);
    assert!(
        shown.contains(&format!(r#""bytes_by_path":{{"same host":{},"tcp":{}}}"#, by_path[0], by_path[1])),
        "{shown}"
    );
    assert!(initiator.show_links(false).contains(&format!("; {} bytes by tcp", by_path[1])));
}

#[test]
fn memory_that_was_found_to_be_a_devices_is_not_tried_within_the_host_again_before_the_peer_gives_some_up() {
    let fake = FakeCuda::load();
    let (target, initiator) = (engine(true), engine(true));
    let (host, other, device) = (Memory::filled(64, 1), Memory::new(64), fake.alloc(0, 64));
    target.register(&[other.range(), device.range()], "*").unwrap();
    let (peer, remote) = (initiator.open(target.name()).unwrap(), device.range().addr() as u64);
    // Whoever fills a range within the host asks the driver for its target first, and TCP asks again.
    let asked = |remote| {
        let before = fake.count("calls");
        initiator.transfer(peer, &[host.write_to(remote)]).unwrap();
        fake.count("calls") - before
    };
    initiator.transfer(peer, &[other.write_to(other.addr())]).unwrap();
    let (first, second, third) = (asked(remote), asked(remote), asked(remote));
    assert!(second < first && third == second, "{first} {second} {third}");
    target.unregister(other.range().addr()).unwrap();
    // There may be something else by now.
    let (fourth, fifth) = (asked(remote), asked(remote));
    assert!(fourth > second && fifth == second, "{fourth} {fifth} {second}");
    assert_eq!(link(&initiator).reason, "device memory at the peer");
}

#[test]
fn a_request_that_is_wrong_shuts_no_path() {
    let _fake = FakeCuda::load();
    let (target, initiator) = (engine(true), engine(true));
    let (here, there) = (Memory::filled(4096, 1), Memory::new(4096));
    target.register(&[there.range()], "*").unwrap();
    let peer = initiator.open(target.name()).unwrap();
    assert_eq!((link(&initiator).path, &*link(&initiator).reason), ("untried", ""));
    for opcode in [Opcode::Read, Opcode::Write] {
        let wrong = Request { opcode, local: memory::nowhere(4096), remote: there.addr() };
        initiator.transfer(peer, &[wrong]).unwrap_err();
        initiator.transfer(peer, &[Request { opcode, local: here.range(), remote: there.addr() }]).unwrap();
        assert_eq!(link(&initiator).path, "same host");
    }
    assert_eq!(link(&initiator).by_path, [("same host", 8192)]);
}

#[test]
fn a_peer_that_can_be_reached_by_tcp_alone_says_why() {
    for (here, there, reason) in [(false, true, "turned off here"), (true, false, "turned off at the peer")] {
        let (target, initiator) = (engine(there), engine(here));
        let (memory, lent) = (Memory::filled(4096, 1), Memory::new(4096));
        target.register(&[lent.range()], "*").unwrap();
        let peer = initiator.open(target.name()).unwrap();
        let told = log_capture::told(ENGINE, || initiator.transfer(peer, &[memory.write_to(lent.addr()); 3]).unwrap());
        assert_eq!(links_of(&told), [format!("path=\"tcp\" reason={reason:?}")]);
        assert_eq!((link(&initiator).path, &*link(&initiator).reason), ("tcp", reason));
        assert_eq!(link(&initiator).by_path, [("tcp", 3 * 4096)]);
    }
}
