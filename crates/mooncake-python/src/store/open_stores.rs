//! Stores that are set up, so that the interpreter's exit closes them.

use mooncake_client::Store;
use parking_lot::Mutex;
use pyo3::prelude::*;

static OPEN: Mutex<Option<Vec<Store>>> = Mutex::new(None);

/// Remembers a store; the first one asks Python to call us at its exit.
pub fn remember(py: Python<'_>, store: &Store) -> PyResult<()> {
    let first = {
        let mut open = OPEN.lock();
        let first = open.is_none();
        let open = open.get_or_insert_default();
        // Closed ones hold nothing worth keeping.
        open.retain(|store| !store.is_closed());
        open.push(store.clone());
        first
    };
    if first {
        let close = wrap_pyfunction!(close_all, py)?;
        py.import("atexit")?.call_method1("register", (close,))?;
    }
    Ok(())
}

/// Closes what is still open: peers learn at once that the memory is gone.
#[pyfunction]
fn close_all(py: Python<'_>) {
    let open = OPEN.lock().as_mut().map(std::mem::take).unwrap_or_default();
    py.detach(|| open.iter().for_each(Store::close));
}
