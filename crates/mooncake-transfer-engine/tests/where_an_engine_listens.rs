//! An engine listens where it was told, and peers are told what they can reach it by.

use std::net::{IpAddr, TcpListener, TcpStream};

use mooncake_transfer_engine::{Engine, EngineOptions, Opcode, Request};

use crate::memory::Memory;
use crate::memory_metadata::MemoryMetadata;

const NEAR: &str = "127.0.0.1";
const ELSEWHERE: &str = "127.0.0.2";
/// Of no host, by RFC 5737.
const NOWHERE: &str = "192.0.2.7";

fn from(variables: &[(&str, &str)]) -> EngineOptions {
    let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    EngineOptions::default().from_env(find).unwrap()
}

/// Whether both ports take connections at an address of this host.
fn is_met_at(engine: &Engine, host: &str) -> bool {
    let ip: IpAddr = host.parse().unwrap();
    let met = [engine.port(), engine.data_port()].map(|port| TcpStream::connect((ip, port)).is_ok());
    assert_eq!(met[0], met[1], "one of both ports at {host}");
    met[0]
}

fn named(name: &str, variables: &[(&str, &str)], metadata: &MemoryMetadata) -> Engine {
    Engine::with_metadata(name, from(variables), Box::new(metadata.clone()), "").unwrap()
}

/// A peer finds it by its name and writes to it.
fn takes_bytes(target: &Engine, metadata: Option<&MemoryMetadata>) {
    let options = from(&[("MC_SHM", "0"), ("MC_TE_BIND_ADDRESS", NEAR)]);
    let initiator = match metadata {
        Some(metadata) => Engine::with_metadata("initiator", options, Box::new(metadata.clone()), "").unwrap(),
        None => Engine::new(NEAR, options).unwrap(),
    };
    let (here, there) = (Memory::new(4096), Memory::new(4096));
    target.register(&[there.range()], "*").unwrap();
    here.range().write_from(&[7; 4096]).unwrap();
    let peer = initiator.open(target.name()).unwrap();
    let request = Request { opcode: Opcode::Write, local: here.range(), remote: there.addr() };
    initiator.transfer(peer, &[request]).unwrap();
    assert_eq!(there.bytes(), [7; 4096]);
}

#[test]
fn nothing_else_is_listened_on_than_the_address_that_was_given() {
    for name in [NEAR, "localhost"] {
        let engine = Engine::new(name, from(&[("MC_TE_BIND_ADDRESS", NEAR)])).unwrap();
        assert!(is_met_at(&engine, NEAR) && !is_met_at(&engine, ELSEWHERE) && !is_met_at(&engine, "::1"));
        takes_bytes(&engine, None);
    }
    let error = Engine::new(NEAR, from(&[("MC_TE_BIND_ADDRESS", NOWHERE)])).unwrap_err().to_string();
    assert!(error.contains(NOWHERE), "{error}");
}

#[test]
fn without_a_word_about_it_all_addresses_are_listened_on() {
    let engine = Engine::new(NEAR, EngineOptions::default()).unwrap();
    assert!(is_met_at(&engine, NEAR) && is_met_at(&engine, ELSEWHERE));
}

#[test]
fn the_address_that_peers_are_told_is_the_one_that_is_listened_on() {
    let (metadata, told) = (MemoryMetadata::default(), [("MC_TCP_BIND_ADDRESS", ELSEWHERE)]);
    let engine = named("a", &told, &metadata);
    assert_eq!(engine.address(), format!("{ELSEWHERE}:{}", engine.port()));
    assert!(is_met_at(&engine, ELSEWHERE) && !is_met_at(&engine, NEAR));
    takes_bytes(&engine, Some(&metadata));
    // Where the name is the address, it is what peers are told.
    let engine = Engine::new(ELSEWHERE, from(&told)).unwrap();
    assert!(is_met_at(&engine, ELSEWHERE) && !is_met_at(&engine, NEAR));
    // Where the name is another, peers come by that.
    let engine = Engine::new(NEAR, from(&told)).unwrap();
    assert!(is_met_at(&engine, NEAR));
    takes_bytes(&engine, None);
}

#[test]
fn what_peers_are_told_may_be_another_than_what_is_listened_on() {
    let metadata = MemoryMetadata::default();
    // A machine in between has the address, and passes on what comes for this one.
    let engine = named("a", &[("MC_TCP_BIND_ADDRESS", NOWHERE)], &metadata);
    assert_eq!(engine.address(), format!("{NOWHERE}:{}", engine.port()));
    assert!(is_met_at(&engine, NEAR));
    let engine = named("b", &[("MC_TCP_BIND_ADDRESS", NOWHERE), ("MC_TE_BIND_ADDRESS", ELSEWHERE)], &metadata);
    assert_eq!(engine.address(), format!("{NOWHERE}:{}", engine.port()));
    assert!(is_met_at(&engine, ELSEWHERE) && !is_met_at(&engine, NEAR));
    // What is listened on is what peers can use, where nothing else is said.
    let engine = named("c", &[("MC_TE_BIND_ADDRESS", ELSEWHERE)], &metadata);
    assert_eq!(engine.address(), format!("{ELSEWHERE}:{}", engine.port()));
    takes_bytes(&engine, Some(&metadata));
    // A host's name is as good as an address.
    let options = EngineOptions { advertise: Some("localhost".into()), ..EngineOptions::default() };
    let engine = Engine::with_metadata("d", options, Box::new(metadata.clone()), "").unwrap();
    assert_eq!(engine.address(), format!("localhost:{}", engine.port()));
    takes_bytes(&engine, Some(&metadata));
}

#[test]
fn data_is_listened_for_in_each_network_and_peers_are_told_all_of_them() {
    let met = |engine: &Engine, host: &str| {
        let ip: IpAddr = host.parse().unwrap();
        [engine.port(), engine.data_port()].map(|port| TcpStream::connect((ip, port)).is_ok())
    };
    let list = ("MC_TCP_ADDRESSES", "127.0.0.2, [::1]");
    let engine = Engine::new(NEAR, from(&[list])).unwrap();
    assert_eq!(["127.0.0.2", "::1"].map(|host| met(&engine, host)), [[true, true]; 2]);
    assert_eq!(met(&engine, NEAR), [true, false], "handshakes are answered where they were");
    takes_bytes(&engine, None);
    let told = |engine: &Engine| crate::relay::document_of(engine);
    let port = engine.data_port();
    let parts = [
        format!("\"tcp_addresses\":[\"127.0.0.2:{port}\",\"[::1]:{port}\"]"),
        format!("\"tcp_data_host\":\"127.0.0.2\",\"tcp_data_port\":{port}"),
    ];
    assert!(parts.iter().all(|part| told(&engine).contains(part)), "{}", told(&engine));
    // Another machine has them, and passes on what comes for this one.
    let engine = Engine::new(NEAR, from(&[("MC_TCP_ADDRESSES", "127.0.0.2,192.0.2.7"), ("MC_TE_BIND_ADDRESS", NEAR)]));
    let engine = engine.unwrap();
    assert_eq!([NEAR, ELSEWHERE].map(|host| met(&engine, host)), [[true, true], [false, false]]);
    let port = engine.data_port();
    assert!(told(&engine).contains(&format!("[\"127.0.0.2:{port}\",\"192.0.2.7:{port}\"]")));
}

#[test]
fn a_name_tells_host_and_port_where_that_is_asked_for() {
    let metadata = MemoryMetadata::default();
    let free = TcpListener::bind((NEAR, 0)).unwrap().local_addr().unwrap().port();
    let name = format!("{NEAR}:{free}");
    let engine = named(&name, &[("MC_LEGACY_RPC_PORT_BINDING", "1"), ("MC_TCP_BIND_ADDRESS", ELSEWHERE)], &metadata);
    assert_eq!((engine.name(), engine.port(), engine.address()), (&*name, free, name.clone()));
    takes_bytes(&engine, Some(&metadata));
}
