//! Memory that is not registered, or not there, is refused, and what follows is done.

use mooncake_transfer_engine::{EngineError, Opcode, Request};

use crate::memory::{Memory, nowhere};
use crate::row::Row;

pub fn memory_that_is_not_registered_is_refused_and_the_connection_goes_on(row: &Row) {
    let (initiator, target, peer, there) = row.pair(1 << 20);
    let here = Memory::filled(4096, 1);
    let end = there.addr() + there.len() as u64;
    for remote in [there.addr() - 1, end - 4095, end, 0, 4096, u64::MAX - 4096] {
        for request in [here.write_to(remote), here.read_from(remote)] {
            let refused = initiator.transfer(peer, &[request]);
            assert!(matches!(refused, Err(EngineError::NotRegistered { .. })), "{remote:#x}: {refused:?}");
        }
    }
    assert!(matches!(initiator.transfer(peer, &[here.write_to(u64::MAX - 10)]), Err(EngineError::InvalidArgument(_))));
    initiator.transfer(peer, &[here.write_to(there.addr())]).unwrap();
    target.unregister(there.range().addr()).unwrap();
    for request in [here.write_to(there.addr()), here.read_from(there.addr())] {
        let refused = initiator.transfer(peer, &[request]);
        assert!(matches!(refused, Err(EngineError::NotRegistered { .. })), "{refused:?}");
    }
    target.register(&[there.range()], "*").unwrap();
    initiator.transfer(peer, &[here.read_from(there.addr())]).unwrap();
    assert!(row.has_moved_bytes(&initiator), "{:?}", initiator.links());
}

pub fn local_memory_that_is_not_there_is_an_error_and_no_signal(row: &Row) {
    let (initiator, _target, peer, there) = row.pair(1 << 20);
    for opcode in [Opcode::Read, Opcode::Write] {
        let request = Request { opcode, local: nowhere(4096), remote: there.addr() };
        let failed = initiator.transfer(peer, &[request]);
        assert!(matches!(failed, Err(EngineError::Memory(_))), "{opcode:?} {failed:?}");
    }
    let here = Memory::filled(4096, 1);
    initiator.transfer(peer, &[here.write_to(there.addr())]).unwrap();
}
