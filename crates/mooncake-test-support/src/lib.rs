//! What the tests of several crates share: fuzzing of decoders with [`run`], [`Golden`] files of formats, a test's
//! [`ChildProcess`], what was logged, and drivers for device memory and network cards where there are none.

#![deny(unsafe_code)]

pub mod child_process;
mod deaf_listener;
#[cfg(feature = "fake-cuda")]
#[allow(unsafe_code, reason = "it is loaded and called as the real driver is")]
pub mod fake_cuda;
#[cfg(feature = "fake-verbs")]
#[allow(unsafe_code, reason = "it is loaded as the real library is")]
pub mod fake_verbs;
mod fuzzing;
mod golden;
pub mod log_capture;
mod mapped_range;
mod mutations;

pub use child_process::ChildProcess;
pub use deaf_listener::DeafListener;
#[cfg(feature = "fake-cuda")]
pub use fake_cuda::FakeCuda;
#[cfg(feature = "fake-verbs")]
pub use fake_verbs::FakeVerbs;
pub use fuzzing::{FuzzTarget, run};
pub use golden::Golden;
pub use mapped_range::{MappedRange, mapped_range};
