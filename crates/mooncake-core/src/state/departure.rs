//! A client that has left, for the lines that people read.

use mooncake_ids::SessionId;

/// A client that leaves for good, with what it had lent to the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Departure {
    /// Its session.
    pub session: SessionId,
    /// "host:port" name of the client.
    pub name: String,
    /// Why.
    pub reason: &'static str,
    /// It closed, and gave its segments back before: nothing is lost.
    pub in_order: bool,
    /// Segments that go with it.
    pub segments: usize,
    /// Their bytes.
    pub lent: u64,
    /// Bytes of these in use, whose objects are gone unless there are other replicas.
    pub used: u64,
}
