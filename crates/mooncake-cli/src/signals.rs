//! SIGTERM and SIGINT end a storage node in order.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};

use tokio::signal::unix::{SignalKind, signal};

/// A flag that becomes true when one of them arrives; the calling thread is woken from [`wait`].
pub fn watch() -> io::Result<Arc<AtomicBool>> {
    let ended = Arc::new(AtomicBool::new(false));
    let (flag, waiting) = (Arc::clone(&ended), thread::current());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let (mut term, mut int) = {
        let _inside = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
    };
    thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async {
            tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
        });
        end(&flag, &waiting);
    })?;
    Ok(ended)
}

fn end(flag: &AtomicBool, waiting: &Thread) {
    flag.store(true, Ordering::Relaxed);
    waiting.unpark();
}

/// Waits for a signal, or returns early: look at the flag.
pub fn wait() {
    thread::park();
}
