//! Distributions that are counted without a lock, what they were a while ago, and the two pages that tell
//! metrics: the text that Prometheus reads, and the reference in `docs/metrics.md`.
#![forbid(unsafe_code)]

mod amount;
mod exposition;
mod histogram;
mod history;
mod page;

pub use amount::{bytes, duration};
pub use exposition::Kind;
pub use histogram::{Distribution, Histogram, Unit};
pub use history::{INTERVALS, Latency, SAMPLE_EVERY, Samples, seconds_between};
pub use page::Page;
