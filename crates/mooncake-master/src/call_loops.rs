//! Threads that serve connections: each has a runtime, and so a poll of sockets, of its own.
//!
//! A runtime of several threads hands what it has read from one to another, and wakes a second one up for what comes
//! while the first is awake. Both cost more than most calls take, and far more than a beat.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinHandle};

/// More do not help: calls take the core's lock one after another.
const CALL_THREADS_MAX: usize = 4;

/// How long the thread of anchors pauses before it looks what has come, for each anchor: many are served by one
/// wake-up, which costs more than a beat does. No call waits for beats, and what else comes by anchors takes its time
/// too.
const PAUSE_EACH: Duration = Duration::from_micros(20);

/// Few anchors, each of which would wait for little.
const PAUSE_FROM: Duration = Duration::from_millis(1);

/// Most of it, however many there are.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// The thread beside that of anchors does the commits of all that wait for it. It stays for as long as the master runs.
const COMMITS_STAY: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Threads that connections are spread over; they end when dropped, and their tasks with them.
#[derive(Debug)]
pub struct Loops {
    loops: Vec<Loop>,
    next: AtomicUsize,
    /// Connections that there are.
    served: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Loop {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Loops {
    /// For calls: as many as may be awake at a time, at least one.
    pub fn for_calls() -> io::Result<Loops> {
        let count = mooncake_net::busy_polls_max().clamp(1, CALL_THREADS_MAX);
        let loops =
            (0..count).map(|number| Loop::start(&format!("calls-{number}"), &mut Builder::new_current_thread()));
        Ok(Loops { loops: loops.collect::<io::Result<_>>()?, next: AtomicUsize::new(0), served: Arc::default() })
    }

    /// For anchors: one, which wakes up for many.
    pub fn for_anchors() -> io::Result<Loops> {
        let served = Arc::<AtomicUsize>::default();
        let count = served.clone();
        let mut builder = Builder::new_current_thread();
        builder.max_blocking_threads(1).thread_keep_alive(COMMITS_STAY);
        builder.on_thread_park(move || {
            let pause = pause(count.load(Ordering::Relaxed));
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
        });
        let loops = Loops { loops: vec![Loop::start("anchors-0", &mut builder)?], next: AtomicUsize::new(0), served };
        // It is there from the beginning: commits go on when no more threads can be had.
        loops.spawn_blocking(|| ());
        Ok(loops)
    }

    /// Runs what may wait for a disk in a thread beside the first one.
    pub fn spawn_blocking<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> JoinHandle<R> {
        self.loops[0].handle.spawn_blocking(work)
    }

    /// Runs a task in the next one.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let next = self.next.fetch_add(1, Ordering::Relaxed) % self.loops.len();
        self.served.fetch_add(1, Ordering::Relaxed);
        let served = Served(self.served.clone());
        let task = async move {
            let _served = served;
            task.await;
        };
        self.loops[next].handle.spawn(task).abort_handle()
    }
}

/// One task that counts as served.
struct Served(Arc<AtomicUsize>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn pause(anchors: usize) -> Duration {
    let pause = PAUSE_EACH.saturating_mul(anchors.try_into().unwrap_or(u32::MAX)).min(PAUSE_MAX);
    if pause < PAUSE_FROM { Duration::ZERO } else { pause }
}

impl Loop {
    fn start(name: &str, builder: &mut Builder) -> io::Result<Loop> {
        let runtime = builder.enable_all().thread_name(format!("{name}-disk")).build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let run = move || {
            let _ = runtime.block_on(stopped);
            // What still waits for a disk does so without this thread.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
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
            tracing::error!("a thread that serves connections panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_pool_is_answered_at_once_and_a_large_one_soon() {
        assert_eq!((pause(0), pause(40)), (Duration::ZERO, Duration::ZERO));
        assert_eq!(pause(500), Duration::from_millis(10));
        assert_eq!((pause(8_192), pause(usize::MAX)), (PAUSE_MAX, PAUSE_MAX));
    }

    #[tokio::test]
    async fn who_has_ended_is_not_counted_whatever_ended_it() {
        let loops = Loops::for_anchors().unwrap();
        let (tell, told) = oneshot::channel::<()>();
        loops.spawn(async move { drop(told.await) });
        let aborted = loops.spawn(std::future::pending());
        assert_eq!(loops.served.load(Ordering::Relaxed), 2);
        aborted.abort();
        drop(tell);
        let until = std::time::Instant::now() + Duration::from_secs(10);
        while loops.served.load(Ordering::Relaxed) > 0 {
            assert!(std::time::Instant::now() < until);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
