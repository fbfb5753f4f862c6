//! What every entry does around its work.

pub(crate) mod interrupt;
pub(crate) mod last_error;
pub(crate) mod log;
pub(crate) mod notice;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use mooncake_client::StoreError;
use pyo3::prelude::*;

use crate::code::{INTERNAL, INVALID_PARAMS, code};
use crate::entry::last_error::LastError;
use crate::entry::log::logging;

/// Runs the body of an entry: its reason starts empty, a panic becomes `-1` (or
/// what `failed` makes of it), and what a signal handler raised is raised.
pub fn entry<T>(
    errors: &LastError,
    name: &str,
    failed: impl FnOnce(i64) -> T,
    body: impl FnOnce() -> PyResult<T>,
) -> PyResult<T> {
    errors.clear();
    let done = catch_unwind(AssertUnwindSafe(|| logging(body))).unwrap_or_else(|panic| {
        let text = panic_text(&*panic);
        errors.set_code(INTERNAL, || format!("{name}: internal error, please report it: {text}"));
        Ok(failed(INTERNAL))
    });
    match interrupt::raised() {
        Some(raised) => Err(raised),
        None => done,
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text")
}

/// Notes the reason and gives the integer.
pub fn failed(errors: &LastError, error: &StoreError) -> i64 {
    let code = code(error.kind());
    errors.set_code(code, || error.to_string());
    code
}

/// Notes why arguments were refused and gives the integer.
pub fn refused(errors: &LastError, reason: impl FnOnce() -> String) -> i64 {
    errors.set(reason);
    INVALID_PARAMS
}
