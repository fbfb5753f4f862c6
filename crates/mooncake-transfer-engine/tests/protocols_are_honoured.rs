//! `protocol` names networks: what is not there is warned of, and what stays within the host uses none.

use mooncake_test_support::log_capture;
use mooncake_transfer_engine::{Engine, EngineError, EngineOptions, Metadata, Protocol};

use crate::memory::Memory;
use crate::memory_metadata::MemoryMetadata;

const ENGINE: &str = "mooncake_transfer_engine";

#[test]
fn tcp_is_the_only_network_whatever_is_named_and_copies_within_the_host_stay() {
    for protocols in [vec![], vec![Protocol::Tcp], vec![Protocol::Rdma], vec![Protocol::Rdma, Protocol::Tcp]] {
        for (same_host, path) in [(true, "same host"), (false, "tcp")] {
            let metadata = MemoryMetadata::default();
            let start = |name| {
                let options = EngineOptions { protocols: protocols.clone(), same_host, ..EngineOptions::default() };
                Engine::with_metadata(name, options, Box::new(metadata.clone()), "").unwrap()
            };
            let (target, initiator) = (start("target"), start("initiator"));
            let (here, there) = (Memory::filled(4096, 1), Memory::new(4096));
            target.register(&[there.range()], "*").unwrap();
            let document = metadata.get("mooncake/ram/target").unwrap().unwrap();
            assert!(document.contains(r#""protocol":"tcp""#), "{document}");
            let peer = initiator.open("target").unwrap();
            initiator.transfer(peer, &[here.write_to(there.addr())]).unwrap();
            assert!(there.bytes() == here.bytes());
            assert_eq!(initiator.links()[0].path, path, "{protocols:?}");
        }
    }
}

#[test]
fn rdma_that_is_not_there_is_warned_of_once_with_what_is_used_instead() {
    for (name, warnings) in [("rdma", 1), ("RDMA", 1), ("tcp", 0), ("", 0)] {
        let options = EngineOptions { protocols: Protocol::named(name).unwrap(), ..EngineOptions::default() };
        let told = log_capture::told(ENGINE, || {
            let (target, initiator) = (
                Engine::new("127.0.0.1", EngineOptions::default()).unwrap(),
                Engine::new("127.0.0.1", options).unwrap(),
            );
            let (here, there) = (Memory::filled(64, 1), Memory::new(64));
            target.register(&[there.range()], "*").unwrap();
            let peer = initiator.open(target.name()).unwrap();
            (0..3).for_each(|_| initiator.transfer(peer, &[here.write_to(there.addr())]).unwrap());
        });
        let of_protocols = |line: &&String| line.starts_with("WARN") && line.contains("protocol");
        let warned: Vec<_> = told.iter().filter(of_protocols).collect();
        assert_eq!(warned.len(), warnings, "{name}: {told:?}");
        assert!(warned.iter().all(|line| line.contains("rdma") && line.contains(r#"instead="tcp""#)), "{warned:?}");
    }
    let unknown = Protocol::named("pigeon");
    assert!(matches!(unknown, Err(EngineError::InvalidArgument(_))), "{unknown:?}");
}
