//! The threads that answer calls: each has a runtime, and so a poll of sockets, of its own.
//!
//! A runtime of several threads hands what it has read from one to another, and wakes a second one up for what comes while
//! the first is awake. Both cost more than most calls take.

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

/// More do not help: calls take the core's lock one after another.
const MOST: usize = 4;

/// Loops that calls are spread over; they end when dropped, and their tasks with them.
#[derive(Debug)]
pub struct CallLoops {
    loops: Vec<Loop>,
    next: AtomicUsize,
}

#[derive(Debug)]
struct Loop {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl CallLoops {
    /// Starts as many as may be awake at a time, at least one.
    pub fn start() -> io::Result<CallLoops> {
        let loops = (0..mooncake_wire::turns().clamp(1, MOST)).map(Loop::start).collect::<io::Result<_>>()?;
        Ok(CallLoops { loops, next: AtomicUsize::new(0) })
    }

    /// Runs a task in the next one.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let next = self.next.fetch_add(1, Ordering::Relaxed) % self.loops.len();
        self.loops[next].handle.spawn(task).abort_handle()
    }
}

impl Loop {
    fn start(number: usize) -> io::Result<Loop> {
        let runtime = Builder::new_current_thread().enable_all().thread_name(format!("calls-{number}-disk")).build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let run = move || {
            let _ = runtime.block_on(stopped);
            // What still waits for a disk does so without this thread.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name(format!("calls-{number}")).spawn(run)?;
        Ok(Loop { handle, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("a thread that answers calls panicked");
        }
    }
}
