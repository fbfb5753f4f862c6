//! Threads of this library: named, and logging where their starter does.

use std::io;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

/// Starts a thread. It logs to whatever the calling thread logs to, so that a
/// library inside another program needs no logger for the whole process.
pub fn start(builder: Builder, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let log = tracing::dispatcher::get_default(Clone::clone);
    builder.spawn(move || {
        let _logging = tracing::dispatcher::set_default(&log);
        body();
    })
}

/// The same for a thread that ends with a scope, and gives a result.
pub fn start_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    builder: Builder,
    body: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    let log = tracing::dispatcher::get_default(Clone::clone);
    builder.spawn_scoped(scope, move || {
        let _logging = tracing::dispatcher::set_default(&log);
        body()
    })
}
