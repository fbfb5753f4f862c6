//! A forked child has its parent's peers and memory before its eyes, and touches none of them.

use std::time::{Duration, Instant};

use mooncake_transfer_engine::EngineError;

use crate::memory::Memory;
use crate::row::Row;

pub fn a_forked_child_touches_nothing_and_its_parent_goes_on(row: &Row) {
    let (initiator, target, peer, there) = row.pair(1 << 20);
    let (here, other) = (Memory::filled(1 << 20, 1), Memory::filled(1 << 20, 2));
    initiator.transfer(peer, &[here.write_to(there.addr())]).unwrap();
    // SAFETY: the child uses what glibc keeps usable in one (its heap), and leaves without running anything else.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let requests = [other.write_to(there.addr()), other.read_from(there.addr())];
        let all_are_refused =
            requests.iter().all(|request| matches!(initiator.transfer(peer, &[*request]), Err(EngineError::Forked)));
        // As it does when the child ends in order.
        let is_closed = initiator.close().is_ok() && target.close().is_ok();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!(all_are_refused && is_closed))) }
    }
    assert_eq!(status_of(child), Some(0));
    assert!(there.bytes() == here.bytes());
    initiator.transfer(peer, &[other.write_to(there.addr())]).unwrap();
    assert!(there.bytes() == other.bytes());
    let link = &initiator.links()[0];
    assert_eq!((link.path, link.failed), (row.path, 0), "{}", link.reason);
}

/// A child's status, once it has ended; none if it does not.
fn status_of(child: libc::pid_t) -> Option<i32> {
    let began = Instant::now();
    let mut status = 0;
    // SAFETY: a child of this process, which nobody else waits for.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        if began.elapsed() > Duration::from_secs(5) {
            // SAFETY: as above.
            unsafe { libc::kill(child, libc::SIGKILL) };
            // SAFETY: as above.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Some(status)
}
