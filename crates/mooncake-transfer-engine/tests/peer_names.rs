//! Names of peers that applications put together: a host, a colon, the port that the engine gave.

use mooncake_transfer_engine::{Engine, EngineError, EngineOptions, PeerId};

use crate::memory::Memory;

fn engine(host: &str) -> Engine {
    Engine::new(host, EngineOptions::default()).unwrap()
}

#[test]
fn a_host_with_colons_needs_no_brackets_before_the_port() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return eprintln!("no IPv6 here: nothing is tested");
    }
    let (target, initiator) = (engine("::1"), engine("127.0.0.1"));
    let (there, here) = (Memory::new(4096), Memory::filled(4096, 7));
    target.register(&[there.range()], "*").unwrap();
    let name = format!("::1:{}", target.port());
    initiator.probe(&name).unwrap();
    assert_eq!(initiator.first_buffer(&name).unwrap(), Some(there.addr()));
    let peer = initiator.open(&name).unwrap();
    initiator.transfer(peer, &[here.write_to(there.addr())]).unwrap();
    assert!(there.bytes() == here.bytes());
    assert_eq!(target.open(&name).unwrap(), PeerId::SELF, "by either name");
    let unmet = initiator.open("::1");
    assert!(matches!(unmet, Err(EngineError::InvalidArgument(_))), "a port is missing: {unmet:?}");
}
