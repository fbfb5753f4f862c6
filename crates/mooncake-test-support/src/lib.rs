//! What the tests of several crates share: fuzzing of decoders with [`run`], [`Golden`] files of formats, a test's
//! [`ChildProcess`], what was logged, and a driver for device memory where there is none.

#![deny(unsafe_code)]

pub mod child_process;
mod deaf_listener;
#[cfg(feature = "fake-cuda")]
#[allow(unsafe_code, reason = "it is loaded and called as the real driver is")]
pub mod fake_cuda;
mod fuzzing;
mod golden;
pub mod log_capture;
mod mapped_range;
mod mutations;

pub use child_process::ChildProcess;
pub use deaf_listener::DeafListener;
#[cfg(feature = "fake-cuda")]
pub use fake_cuda::FakeCuda;
pub use fuzzing::{FuzzTarget, run};
pub use golden::Golden;
pub use mapped_range::{MappedRange, mapped_range};
