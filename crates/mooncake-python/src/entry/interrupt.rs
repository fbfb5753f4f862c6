//! What ends a call that waits: Ctrl-C, and an event loop that wants it no more.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;

thread_local! {
    /// What a Python signal handler raised while this thread was in a call.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    /// Another thread sets it when no caller waits for this thread's call any more.
    static UNWANTED: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// By this, one thread ends what another does meanwhile, `with` it as context:
/// its calls fail soon, and store nothing that was not stored before.
#[pyclass(frozen, name = "_Interrupt", module = "mooncake.store")]
pub struct Interrupt(Arc<AtomicBool>);

#[pymethods]
impl Interrupt {
    #[new]
    fn new() -> Self {
        Self(Arc::default())
    }

    /// From any thread, at any time; there is no way back.
    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn __enter__(&self) {
        UNWANTED.set(Some(self.0.clone()));
    }

    fn __exit__(&self, _kind: &Bound<'_, PyAny>, _value: &Bound<'_, PyAny>, _trace: &Bound<'_, PyAny>) {
        UNWANTED.set(None);
    }
}

/// Whether the call of this thread has to end: it is not wanted any more, or a
/// Python handler of a signal that arrived raised something. Python runs these
/// on its main thread only, so other threads do not even take the GIL. What was
/// raised stays until [`raised`] takes it, at the end of the call, and so does the answer.
pub fn requested() -> bool {
    if UNWANTED.with_borrow(|unwanted| unwanted.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed))) {
        return true;
    }
    if RAISED.with_borrow(Option::is_some) {
        return true;
    }
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
