//! Ctrl-C during a call that waits.

use std::cell::RefCell;

use pyo3::prelude::*;

thread_local! {
    /// What a Python signal handler raised while this thread was in a call.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Whether the call of this thread has to end: runs the Python handlers of
/// signals that arrived. Python runs them on its main thread only, so other
/// threads do not even take the GIL.
pub fn requested() -> bool {
    // SAFETY: both calls have no preconditions.
    let main = unsafe { libc::gettid() == libc::getpid() };
    main && Python::try_attach(|py| match py.check_signals() {
        Ok(()) => false,
        Err(raised) => {
            RAISED.set(Some(raised));
            true
        }
    })
    .unwrap_or(false)
}

/// The exception that ended this thread's call, if one did.
pub fn raised() -> Option<PyErr> {
    RAISED.take()
}
