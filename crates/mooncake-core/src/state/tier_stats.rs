//! What the owner of a tier says of it now and then. No log has that. What the disk has done is told as it is; what the
//! tier's files may have is as much as the pool takes them to have, for as long as the owner has the tier.

/// What carries an owner's operations out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TierEngine {
    /// It does not say.
    #[default]
    Unknown,
    /// io_uring.
    Ring,
    /// Threads that wait for the disk.
    Threads,
}

/// Operations of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierOperations {
    /// Those that have ended.
    pub count: u64,
    /// How long they took, each for itself.
    pub micros: u64,
    /// Those that failed.
    pub failed: u64,
}

/// What an owner has had its disk do since it took the tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierStats {
    /// What carries it out.
    pub engine: TierEngine,
    /// Bytes of the tier's files.
    pub used_bytes: u64,
    /// Bytes that they may have; 0 if it does not say.
    pub capacity_bytes: u64,
    /// Reads.
    pub reads: TierOperations,
    /// Writes.
    pub writes: TierOperations,
    /// Syncs.
    pub syncs: TierOperations,
    /// Records whose header or sums were not what the log says.
    pub bad_records: u64,
    /// Bytes that were read for lanes, promotions, what is kept of a file, rechecks and proofs.
    pub read_bytes: [u64; 5],
    /// Bytes that were written: of objects that were ordered, of those that were kept, and the rest.
    pub written_bytes: [u64; 3],
    /// Of late there was no room for its next file, though it has not what it may have.
    pub lacks_room: bool,
    /// Folders beside it that no log of this pool knows.
    pub unknown_folders: u64,
}
