//! What is still under way of a write whose call has failed lands over no newer bytes.

use std::time::{Duration, Instant};

use mooncake_transfer_engine::{EngineError, Opcode};

use crate::memory::Memory;
use crate::peers_that_stop::lender;
use crate::row::Row;

const LEN: usize = 32 << 20;

pub fn a_write_that_was_given_up_lands_over_no_later_one(row: &Row) {
    let initiator = row.engine();
    let (lender, peer, addr) = lender(&initiator, row);
    let (old, new, seen) = (Memory::filled(LEN, 1), Memory::filled(LEN, 2), Memory::new(LEN));
    lender.stop();
    let began = Instant::now();
    let wish = || began.elapsed() > Duration::from_millis(300);
    let given_up = initiator.transfer_with(peer, &[old.write_to(addr)], &wish);
    match row.needs_the_peer(Opcode::Write) {
        true => assert!(matches!(given_up, Err(EngineError::Interrupted)), "{given_up:?}"),
        false => given_up.unwrap(),
    }
    lender.go_on();
    initiator.transfer(peer, &[new.write_to(addr)]).unwrap();
    for _ in 0..10 {
        initiator.transfer(peer, &[seen.read_from(addr)]).unwrap();
        assert!(seen.bytes() == new.bytes(), "bytes of the write that was given up lie over those of a newer one");
        std::thread::sleep(Duration::from_millis(20));
    }
}
