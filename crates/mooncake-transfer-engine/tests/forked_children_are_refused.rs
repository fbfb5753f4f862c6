//! A forked child has none of its parent's threads, but the locks that they held at that moment: it is refused by every
//! call of an engine, and waits for nobody.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mooncake_memory::ForeignRange;
use mooncake_transfer_engine::{BatchId, Engine, EngineError, EngineOptions, Opcode, PeerId, Request};

/// Requests of a batch: adding so many takes a while, with its lock held.
const MANY: usize = 300_000;

fn is_forked<T>(result: Result<T, EngineError>) -> bool {
    matches!(result, Err(EngineError::Forked))
}

fn all_is_refused(engine: &Engine, batch: BatchId) -> bool {
    let peer = PeerId::SELF;
    let request = nothing();
    is_forked(engine.status(batch))
        && is_forked(engine.task_status(batch, 0))
        && is_forked(engine.wait(batch, Duration::ZERO))
        && is_forked(engine.deadline(batch))
        && is_forked(engine.batch_error(batch))
        && is_forked(engine.when_done(batch, Box::new(|| ())))
        && is_forked(engine.submit(batch, vec![(peer, request)], None))
        && is_forked(engine.submit(engine.allocate(1), vec![(peer, request)], None))
        && is_forked(engine.free(batch))
        && is_forked(engine.transfer(peer, &[request]))
        && is_forked(engine.first_buffer(engine.name()))
        && is_forked(engine.probe(engine.name()))
        && is_forked(engine.unregister(4096))
        && engine.take_notifies().is_empty()
        && engine.registered().is_empty()
        && engine.links().is_empty()
        && engine.close().is_ok()
}

/// A request that is done as soon as it is looked at.
fn nothing() -> Request {
    // SAFETY: no byte of it is touched.
    Request { opcode: Opcode::Read, local: unsafe { ForeignRange::new(4096, 0) }, remote: 4096 }
}

/// A child's status, once it has ended; none if it does not.
fn ending(child: libc::pid_t) -> Option<i32> {
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

#[test]
fn a_child_waits_for_no_lock_that_a_thread_of_its_parent_held() {
    let engine = Engine::new("127.0.0.1", EngineOptions::default()).unwrap();
    let (newest, halt) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !halt.load(Ordering::Relaxed) {
                let batch = engine.allocate(MANY);
                newest.store(batch.0, Ordering::Relaxed);
                engine.submit(batch, vec![(PeerId::SELF, nothing()); MANY], None).unwrap();
                engine.wait(batch, Duration::MAX).unwrap();
                engine.free(batch).unwrap();
            }
        });
        let endings: Vec<_> = (0..30)
            .map(|round| {
                std::thread::sleep(Duration::from_millis(round % 7));
                let batch = BatchId(newest.load(Ordering::Relaxed));
                // SAFETY: the child uses what glibc keeps usable in one (its heap), and leaves without running anything
                // else.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    let refused = all_is_refused(&engine, batch);
                    // SAFETY: ends the child at once.
                    unsafe { libc::_exit(i32::from(!refused)) }
                }
                ending(child)
            })
            .collect();
        halt.store(true, Ordering::Relaxed);
        assert!(endings.iter().all(|ending| *ending == Some(0)), "{endings:?}");
    });
}
