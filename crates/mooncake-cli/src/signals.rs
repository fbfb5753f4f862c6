//! SIGTERM and SIGINT end a storage node in order. SIGTERM leaves its memory to the next process, where it is kept.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

/// Which signals have come.
#[derive(Debug, Clone, Default)]
pub struct Signals {
    /// One of them has.
    pub ended: Arc<AtomicBool>,
    /// It was SIGINT.
    pub is_interrupt: Arc<AtomicBool>,
}

/// Flags that become true when one of them arrives; the calling thread is woken from [`wait`].
pub fn watch() -> io::Result<Signals> {
    let signals = Signals::default();
    let (flags, waiting) = (signals.clone(), thread::current());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let (mut term, mut int) = {
        let _inside = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
    };
    thread::Builder::new().name("signals".into()).spawn(move || {
        let is_interrupt = runtime.block_on(async {
            tokio::select! { _ = term.recv() => false, _ = int.recv() => true }
        });
        flags.is_interrupt.store(is_interrupt, Ordering::Relaxed);
        end(&flags.ended, &waiting);
    })?;
    Ok(signals)
}

fn end(flag: &AtomicBool, waiting: &Thread) {
    // Behind the kind of the signal.
    flag.store(true, Ordering::Release);
    waiting.unpark();
}

/// Waits for a signal, and no longer than that, or returns early: look at the flag.
pub fn wait(most: Option<Duration>) {
    match most {
        Some(most) => thread::park_timeout(most),
        None => thread::park(),
    }
}
