//! Engines that are found by a name, and whose the name is.

use std::net::UdpSocket;
use std::process::Command;
use std::time::{Duration, Instant};

use mooncake_test_support::child_process::{ChildProcess, hear, role, say};
use mooncake_test_support::test_name;
use mooncake_transfer_engine::{Engine, EngineError, EngineOptions, HttpMetadata, Notify};

use crate::memory::Memory;
use crate::memory_metadata::MemoryMetadata;
use crate::ordered_metadata::OrderedMetadata;

fn named(name: &str, metadata: &MemoryMetadata, options: EngineOptions) -> Engine {
    Engine::with_metadata(name, options, Box::new(metadata.clone()), "").unwrap()
}

/// Nobody is there to answer for it.
fn out_of_reach() -> EngineOptions {
    let (bind, advertise) = ("127.0.0.1".parse().ok(), Some("127.0.0.9".into()));
    EngineOptions { bind, advertise, ..EngineOptions::default() }
}

#[test]
fn an_engine_that_was_replaced_under_its_name_leaves_its_successor_alone() {
    let (metadata, lent, more) = (MemoryMetadata::default(), Memory::new(4096), Memory::new(4096));
    let first = named("node-a", &metadata, out_of_reach());
    first.register(&[more.range()], "*").unwrap();
    let second = named("node-a", &metadata, EngineOptions::default());
    second.register(&[lent.range()], "*").unwrap();
    let documents = metadata.all();
    assert_eq!(documents.len(), 2);

    let buffer = Memory::new(4096);
    let failed = first.register(&[buffer.range()], "*").unwrap_err();
    assert!(matches!(&failed, EngineError::NameTaken { at, .. } if *at == second.address()), "{failed}");
    assert!(first.registered().iter().all(|one| one.addr != buffer.range().addr()));
    first.unregister(more.range().addr()).unwrap();
    first.close().unwrap();
    assert_eq!(metadata.all(), documents);

    let initiator = named("node-b", &metadata, EngineOptions::default());
    let (peer, here) = (initiator.open("node-a").unwrap(), Memory::filled(4096, 3));
    initiator.transfer(peer, &[here.write_to(lent.addr())]).unwrap();
    assert!(lent.bytes() == here.bytes());
    second.close().unwrap();
    assert!(!metadata.all().iter().any(|(key, _)| key.contains("node-a")));
}

/// Two engines that begin with one name at the same moment, in such an order of what they ask of the service: one has
/// the name in the end, and the other one is told.
fn one_of_two_has_the_name(metadata: MemoryMetadata, order: &'static [(&'static str, &'static str)]) {
    let ordered = OrderedMetadata::new(metadata.clone(), order);
    let begin = |who: &'static str| {
        let service = Box::new(ordered.service(who));
        Engine::with_metadata("node-a", EngineOptions::default(), service, "")
    };
    let (one, two) = std::thread::scope(|scope| {
        let one = scope.spawn(|| begin("one"));
        let two = begin("two");
        (one.join().unwrap(), two)
    });
    let (winner, loser) = match (one, two) {
        (Ok(winner), Err(loser)) | (Err(loser), Ok(winner)) => (winner, loser),
        (one, two) => panic!("{one:?} {two:?}"),
    };
    assert!(matches!(&loser, EngineError::NameTaken { name, .. } if name == "node-a"), "{loser}");
    let port = format!("\"rpc_port\":{}", winner.port());
    assert!(metadata.all().iter().any(|(key, document)| key.contains("rpc_meta") && document.contains(&port)));
    let (lent, here) = (Memory::new(4096), Memory::filled(4096, 3));
    winner.register(&[lent.range()], "*").unwrap();
    let initiator = named("node-b", &metadata, EngineOptions::default());
    let peer = initiator.open("node-a").unwrap();
    initiator.transfer(peer, &[here.write_to(lent.addr())]).unwrap();
    assert!(lent.bytes() == here.bytes());
}

#[test]
fn of_two_that_take_a_new_name_at_once_one_has_it() {
    let order = &[("one put 1", "two get 1"), ("two put 1", "one put 1"), ("one get 2", "two put 1")];
    one_of_two_has_the_name(MemoryMetadata::default(), order);
}

#[test]
fn of_two_that_take_a_new_name_at_once_one_has_it_where_the_service_keeps_the_first() {
    let order = &[("one put 1", "two get 1"), ("two put 1", "one put 1"), ("one get 2", "two put 1")];
    one_of_two_has_the_name(MemoryMetadata::that_keeps_addresses(), order);
}

#[test]
fn of_two_that_replace_a_dead_engine_at_once_one_has_its_name() {
    for metadata in [MemoryMetadata::default(), MemoryMetadata::that_keeps_addresses()] {
        let _dead = named("node-a", &metadata, out_of_reach());
        // The second has found the dead one's entry, and removes that of the first.
        let order = &[("one del 1", "two get 2"), ("two del 1", "one put 1"), ("one get 3", "two put 1")];
        one_of_two_has_the_name(metadata, order);
    }
}

#[test]
fn one_whose_entry_is_removed_by_another_that_begins_has_its_name_in_the_end_or_the_other_has() {
    let metadata = MemoryMetadata::that_keeps_addresses();
    let _dead = named("node-a", &metadata, out_of_reach());
    let order = &[
        ("one del 1", "two get 2"),
        ("two del 1", "one put 1"),
        ("one get 3", "two del 1"),
        ("two put 1", "one put 2"),
    ];
    one_of_two_has_the_name(metadata, order);
}

#[test]
fn one_that_took_a_dead_engines_name_meanwhile_is_not_taken_for_the_dead_one() {
    let metadata = MemoryMetadata::default();
    let _dead = named("node-a", &metadata, out_of_reach());
    // The second looks long whether the dead one is dead.
    let order = &[("one del 1", "two get 1"), ("two get 2", "one get 3")];
    one_of_two_has_the_name(metadata, order);
}

#[test]
fn an_engine_is_found_again_once_a_service_that_lost_everything_is_told() {
    let (metadata, lent) = (MemoryMetadata::default(), Memory::new(4096));
    let target = named("node-a", &metadata, EngineOptions::default());
    metadata.forget();
    target.register(&[lent.range()], "*").unwrap();
    let initiator = named("node-b", &metadata, EngineOptions::default());
    let (peer, here) = (initiator.open("node-a").unwrap(), Memory::filled(4096, 3));
    initiator.transfer(peer, &[here.write_to(lent.addr())]).unwrap();
    assert!(lent.bytes() == here.bytes());
}

#[test]
fn a_service_that_does_not_answer_keeps_no_call_beyond_its_deadline_or_its_callers_wish() {
    let metadata = MemoryMetadata::default();
    let target = named("node-a", &metadata, EngineOptions::default());
    let second = Duration::from_secs(1);
    let options = EngineOptions { transfer_timeout: second, connect_timeout: second, ..EngineOptions::default() };
    let initiator = named("node-b", &metadata, options);
    let peer = initiator.open("node-a").unwrap();
    metadata.mute(true);
    // Many that were given up do not add up.
    for nth in 0..40 {
        let began = Instant::now();
        let enough = || began.elapsed() > Duration::from_millis(10);
        let left = match nth % 3 {
            0 => initiator.open_with("node-c", &enough).map(drop),
            1 => initiator.probe_with("node-a", &enough),
            _ => initiator.notify_with(peer, &Notify { name: "a".into(), message: "b".into() }, &enough),
        };
        assert!(matches!(left, Err(EngineError::Interrupted)), "{left:?}");
        assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
    }
    for call in [|e: &Engine| e.open("node-c").map(drop), |e: &Engine| e.probe("node-a")] {
        let began = Instant::now();
        let late = call(&initiator);
        assert!(matches!(late, Err(EngineError::Timeout { .. })), "{late:?}");
        let took = began.elapsed();
        assert!(took >= second && took < 2 * second, "{took:?}");
    }
    metadata.mute(false);
    initiator.probe("node-a").unwrap();
    target.close().unwrap();
}

/// Not a test of its own.
#[test]
fn other() {
    if role().is_none() {
        return;
    }
    // The only resolver that there is takes questions and has no answers.
    let _resolver = UdpSocket::bind("127.0.0.1:53").unwrap();
    let engine = Engine::new("127.0.0.1", EngineOptions::default()).unwrap();
    say("ready");
    hear();
    let began = Instant::now();
    let enough = || began.elapsed() > Duration::from_millis(200);
    let ended = engine.open_with("peer.example.com:15000", &enough);
    assert!(matches!(ended, Err(EngineError::Interrupted)), "{ended:?}");
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    let began = Instant::now();
    let second = Duration::from_secs(1);
    let options = EngineOptions { transfer_timeout: second, connect_timeout: second, ..EngineOptions::default() };
    let service = HttpMetadata::new("http://service.example.com/metadata");
    let failed = Engine::with_metadata("a", options, Box::new(service), "").unwrap_err();
    assert!(matches!(failed, EngineError::Timeout { .. }), "{failed:?}");
    assert!(began.elapsed() < 2 * second, "{:?}", began.elapsed());
    say("in time");
}

#[test]
fn a_resolver_that_does_not_answer_keeps_no_call_beyond_its_deadline_or_its_callers_wish() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("resolv.conf");
    std::fs::write(&file, "nameserver 127.0.0.1\n").unwrap();
    let inside = "mount --bind \"$0\" /etc/resolv.conf && ip link set lo up && exec \"$@\"";
    let within = ["unshare", "-rmn", "sh", "-c", inside, file.to_str().unwrap()];
    let may = Command::new(within[0]).args(&within[1..]).arg("true").status();
    if !may.is_ok_and(|status| status.success()) {
        eprintln!("not tried: this system lets nobody make a network of his own");
        return;
    }
    let mut asker = ChildProcess::start_by(&within, &test_name!("other"), "asker");
    assert_eq!(asker.hear(), "ready");
    asker.say("go");
    assert_eq!(asker.hear(), "in time");
}
