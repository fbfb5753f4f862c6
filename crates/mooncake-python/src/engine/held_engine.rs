//! An engine as Python's objects hold it, with the memory that it gave out.

use std::time::{Duration, Instant};

use mooncake_memory::{allocate_shared, free_host_memory};
use mooncake_os::forked;
use mooncake_transfer_engine::{BatchId, Engine, EngineError, Status};
use parking_lot::Mutex;
use pyo3::Python;

use crate::convert::buffers::range;
use crate::entry::interrupt;

/// A call that waits in the background looks up so often: for Ctrl-C.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// An engine and its memory. None of what follows is called by a thread that holds Python: it waits for others.
pub struct Held {
    engine: Engine,
    /// Addresses of the memory that was given out and has not been given back.
    memory: Mutex<Vec<usize>>,
}

impl Held {
    /// Holds an engine that was just begun.
    pub fn new(engine: Engine) -> Held {
        Held { engine, memory: Mutex::default() }
    }

    /// Ends the engine and frees the memory that it gave out; none of it while a peer or a call may still be at it. May
    /// be called again.
    pub fn end(&self, interrupted: &(dyn Fn() -> bool + Sync)) -> Result<(), EngineError> {
        self.engine.close_with(interrupted)?;
        if forked() {
            // The memory is the parent's, and so may be the locks.
            return Ok(());
        }
        for addr in self.memory.lock().drain(..) {
            // SAFETY: the engine that lent it is closed, no call uses it, and its user has given the engine up.
            unsafe { free_host_memory(addr) };
        }
        Ok(())
    }

    /// Memory that is registered already; its address.
    pub fn allocate_memory(&self, length: u64) -> Result<usize, EngineError> {
        let addr = allocate_shared(length).map_err(|error| EngineError::Memory(error.to_string()))?;
        match self.engine.register_with(&[range(addr as u64, length)], "*", &interrupt::requested) {
            Ok(()) => {
                self.memory.lock().push(addr);
                Ok(addr)
            }
            Err(error) => {
                if let EngineError::BufferBusy { .. } = error {
                    // A peer is at it already. It ends with the engine.
                    self.memory.lock().push(addr);
                } else {
                    // SAFETY: it is given up, and its user does not have it yet.
                    unsafe { free_host_memory(addr) };
                }
                Err(error)
            }
        }
    }

    /// Takes it back.
    pub fn free_memory(&self, addr: usize) -> Result<(), EngineError> {
        if forked() {
            return Err(EngineError::Forked);
        }
        {
            let mut memory = self.memory.lock();
            let Some(at) = memory.iter().position(|given| *given == addr) else {
                return Err(EngineError::InvalidArgument(format!("{addr:#x} was not allocated here")));
            };
            memory.swap_remove(at);
        }
        if let Err(error) = self.engine.unregister_all_with(&[addr], &interrupt::requested) {
            // It may be given back again, and ends with the engine otherwise.
            self.memory.lock().push(addr);
            return Err(error);
        }
        // SAFETY: peers touch it no more, and its user gives it up.
        unsafe { free_host_memory(addr) };
        Ok(())
    }

    /// Waits for batches and frees them. The error is that of the first that failed; Ctrl-C leaves the remaining ones
    /// as they are.
    pub fn finish_all(&self, batches: &[u64]) -> Result<i64, EngineError> {
        let mut looked = Instant::now();
        let mut result = Ok(0);
        for batch in batches {
            // Many that are done soon, one after another, are a long wait, too.
            if looked.elapsed() >= POLL_INTERVAL {
                if interrupt::requested() {
                    return Err(EngineError::Interrupted);
                }
                looked = Instant::now();
            }
            match self.finish(BatchId(*batch), None) {
                Err(EngineError::Interrupted) => return Err(EngineError::Interrupted),
                one => result = result.and(one),
            }
        }
        result
    }

    /// Waits for a batch and frees it. 0; -2 if it is not done in that time, and goes on.
    pub fn finish(&self, batch: BatchId, timeout: Option<Duration>) -> Result<i64, EngineError> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left =
                until.map_or(POLL_INTERVAL, |until| until.saturating_duration_since(Instant::now()).min(POLL_INTERVAL));
            match self.engine.wait(batch, left) {
                Err(EngineError::Timeout { .. }) => {
                    if interrupt::requested() {
                        return Err(EngineError::Interrupted);
                    }
                    if until.is_some_and(|until| Instant::now() >= until) {
                        return Ok(-2);
                    }
                }
                Err(error) => return Err(error),
                Ok(status) => {
                    let reason = self.engine.batch_error(batch)?;
                    self.engine.free(batch)?;
                    return match status {
                        Status::Completed => Ok(0),
                        _ => Err(EngineError::InvalidArgument(reason.unwrap_or_else(|| "the batch failed".into()))),
                    };
                }
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let end = || {
            if let Err(error) = self.end(&|| false) {
                let blocks = self.memory.lock().len();
                tracing::error!(%error, blocks, "an engine has ended, and its memory stays where it is");
            }
        };
        // Its threads end first, and they may have to tell Python of what they did: not while this one holds Python.
        if Python::try_attach(|py| py.detach(end)).is_none() {
            end();
        }
    }
}

impl std::ops::Deref for Held {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}
