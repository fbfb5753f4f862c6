//! Distributions that are counted without a lock, and the two pages that tell
//! metrics: the text that Prometheus reads, and the reference in `docs/metrics.md`.
#![forbid(unsafe_code)]

mod amount;
mod exposition;
mod histogram;
mod page;

pub use amount::bytes;
pub use exposition::Kind;
pub use histogram::{Distribution, Histogram, Unit};
pub use page::Page;
