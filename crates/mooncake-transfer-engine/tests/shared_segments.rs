//! Memory that the ranks of a group have in common.

use std::collections::BTreeSet;

use mooncake_memory::ForeignRange;
use mooncake_transfer_engine::{Engine, EngineOptions, Opcode, Request, SharedSegment};

const SIZE: u64 = 100_000;

fn group(world_size: u32, owner: u32) -> Vec<SharedSegment> {
    let one = |rank| SharedSegment::create("kv", SIZE, world_size, rank, owner).unwrap();
    let (segments, tickets): (Vec<_>, Vec<_>) = (0..world_size).map(one).unzip();
    for segment in &segments {
        assert!(!segment.is_ready());
        segment.complete(&tickets, &|| false).unwrap();
        assert!(segment.is_ready() && segment.bytes() == SIZE);
    }
    segments
}

fn all_of(segment: &SharedSegment) -> ForeignRange {
    // SAFETY: memory of a segment that outlives its use, only touched by fault-safe copies.
    unsafe { ForeignRange::new(segment.base(), SIZE as usize) }
}

fn begins_with(segment: &SharedSegment, bytes: &[u8]) -> bool {
    let mut found = vec![0; bytes.len()];
    all_of(segment).read_into(&mut found).unwrap();
    found == bytes
}

#[test]
fn all_ranks_have_the_same_bytes_at_addresses_of_their_own() {
    let mut segments = group(4, 2);
    all_of(&segments[0]).write_from(b"abc").unwrap();
    assert!(segments.iter().all(|segment| begins_with(segment, b"abc")));
    let addresses: BTreeSet<usize> = segments.iter().map(SharedSegment::base).collect();
    assert_eq!(addresses.len(), 4);
    // The owner goes; the others keep what they have.
    drop(segments.remove(2));
    all_of(&segments[1]).write_from(b"xyz").unwrap();
    assert!(segments.iter().all(|segment| begins_with(segment, b"xyz")));
}

#[test]
fn a_rank_alone_needs_nobody() {
    assert!(begins_with(&group(1, 0)[0], &[0; 9]));
}

#[test]
fn any_rank_lends_the_memory_and_peers_map_it() {
    let segments = group(2, 0);
    for segment in &segments {
        let target = Engine::new("127.0.0.1", EngineOptions::default()).unwrap();
        let initiator = Engine::new("127.0.0.1", EngineOptions::default()).unwrap();
        target.register(&[all_of(segment)], "*").unwrap();
        let peer = initiator.open(target.name()).unwrap();
        let here = [segment.base() as u8; 5];
        // SAFETY: lives until the transfer is done.
        let local = unsafe { ForeignRange::new(here.as_ptr().expose_provenance(), here.len()) };
        let request = Request { opcode: Opcode::Write, local, remote: segment.base() as u64 };
        initiator.transfer(peer, &[request]).unwrap();
        assert!(segments.iter().all(|segment| begins_with(segment, &here)));
        assert!(initiator.links()[0].reason.starts_with("1 blocks"), "{}", initiator.links()[0].reason);
        target.close().unwrap();
    }
}
