//! All bytes of a success are in place, whatever their number, offset and direction.

use std::time::Duration;

use mooncake_transfer_engine::{EngineError, Notify, Opcode, Request, Status};

use crate::memory::Memory;
use crate::row::Row;

pub fn sizes_from_a_byte_to_many_megabytes_go_both_ways(row: &Row) {
    let (initiator, target, peer, there) = row.pair((40 << 20) + 4097);
    for size in [1, 2, 4095, 4096, 4097, 65_536, 1_000_003, (1 << 20) + 1, 40 << 20] {
        for offset in [0, 1, 4097] {
            let (here, back) = (Memory::filled(size, (size + offset) as u64), Memory::new(size));
            initiator.transfer(peer, &[here.write_to(there.addr() + offset as u64)]).unwrap();
            assert!(there.bytes()[offset..][..size] == *here.bytes(), "{size} written at {offset}");
            initiator.transfer(peer, &[back.read_from(there.addr() + offset as u64)]).unwrap();
            assert!(back.bytes() == here.bytes(), "{size} read at {offset}");
        }
    }
    let link = &initiator.links()[0];
    assert_eq!(link.path, row.path, "{}", link.reason);
    assert_eq!((link.failed, &*link.peer), (0, target.name()));
    assert!(row.has_moved_bytes(&initiator), "{}", link.reason);
}

pub fn a_list_of_many_pieces_is_moved_whole_and_in_both_directions_at_once(row: &Row) {
    let (initiator, _target, peer, there) = row.pair(8 << 20);
    let here = Memory::filled(4 << 20, 5);
    let back = Memory::new(4 << 20);
    // Odd cuts, an empty one among them.
    let cuts: Vec<usize> = (0..3000).map(|n| (n * 1398 + n % 7).min(4 << 20)).chain([4 << 20, 4 << 20]).collect();
    let mut requests = Vec::new();
    for cut in cuts.windows(2) {
        let local = here.range().part(cut[0], cut[1] - cut[0]);
        requests.push(Request { opcode: Opcode::Write, local, remote: there.addr() + cut[0] as u64 });
    }
    initiator.transfer(peer, &requests).unwrap();
    assert!(there.bytes()[..4 << 20] == *here.bytes());
    let mixed: Vec<Request> = requests
        .iter()
        .flat_map(|write| {
            let at = write.local.addr() - here.range().addr();
            let read = back.range().part(at, write.local.len());
            [
                Request { remote: write.remote + (4 << 20), ..*write },
                Request { opcode: Opcode::Read, local: read, remote: write.remote },
            ]
        })
        .collect();
    initiator.transfer(peer, &mixed).unwrap();
    assert!(back.bytes() == here.bytes() && there.bytes()[4 << 20..] == *here.bytes());
}

pub fn batches_end_with_all_their_bytes_in_place_and_their_message_before(row: &Row) {
    let (initiator, target, peer, there) = row.pair(16 << 20);
    let here = Memory::filled(16 << 20, 9);
    let batch = initiator.allocate(1000);
    let piece = |n: usize| {
        let local = here.range().part(n * 16_384, 16_384);
        (peer, Request { opcode: Opcode::Write, local, remote: there.addr() + n as u64 * 16_384 })
    };
    initiator.submit(batch, (0..500).map(piece).collect(), None).unwrap();
    let notify = Notify { name: "blocks".into(), message: "1000 of them".into() };
    initiator.submit(batch, (500..1000).map(piece).collect(), Some((peer, notify.clone()))).unwrap();
    let too_many = initiator.submit(batch, vec![piece(0)], None);
    assert!(matches!(too_many, Err(EngineError::TooManyRequests { capacity: 1000, queued: 1000, more: 1 })));
    assert_eq!(initiator.wait(batch, Duration::from_secs(30)).unwrap(), Status::Completed);
    assert!(there.bytes()[..1000 * 16_384] == here.bytes()[..1000 * 16_384]);
    assert_eq!(initiator.task_status(batch, 999).unwrap().transferred, 16_384);
    assert!(initiator.task_status(batch, 1000).is_err());
    assert_eq!(target.take_notifies(), [notify]);
    initiator.free(batch).unwrap();
    assert!(matches!(initiator.free(batch), Err(EngineError::NoSuchBatch(_))));
}
