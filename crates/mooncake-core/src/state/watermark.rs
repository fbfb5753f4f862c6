//! The high watermark.

/// How far eviction down from the high watermark is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Watermark {
    /// Less is in use, or will be looked at with the next tick.
    #[default]
    Below,
    /// More may be in use.
    Unknown,
    /// More was in use: as much is evicted as is to be free below it.
    Evicting,
}
