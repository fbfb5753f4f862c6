//! Settings of the core.

use crate::request::PutConfig;

/// Times are milliseconds. Rules are those of docs/safety.md, which says what each one decides.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// How long an existence query protects what it found: rule 12.
    pub lookup_protect_ms: u64,
    /// A reservation's deadline after its start or last renewal: rule 6.
    pub reservation_ms: u64,
    /// Silence after which a session is away: the states of a session.
    pub away_ms: u64,
    /// Time away after which a session is over: the states of a session.
    pub retention_ms: u64,
    /// How long a put waits for another put of its key: rule 9.
    pub busy_wait_ms: u64,
    /// How long a put waits for room before it takes protected objects: rule 12.
    pub full_wait_ms: u64,
    /// Most sessions, those that are away among them.
    pub sessions_max: usize,
    /// Most unanswered mutations remembered per session: rule 6.
    pub unanswered_max: usize,
    /// Most bytes in unfinished puts per session, as a share of all capacity: rule 13.
    pub unfinished_share_max: f64,
    /// Where new objects go.
    pub placement: PlacementStrategy,
    /// Background eviction starts above this share of capacity; 1.0 = only puts evict.
    pub high_watermark: f64,
    /// Background eviction frees this share of capacity below the watermark.
    pub eviction_share: f64,
    /// Soft-pinned objects may be taken when nothing else is left.
    pub evict_soft_pinned: bool,
    /// Longest soft pin.
    pub soft_pin_ttl_max_ms: u64,
    /// Clients may keep tiers.
    pub tiers_allowed: bool,
    /// The folder below which sessions may have tiers on a file system that they share.
    pub shared_storage: Option<SharedStorage>,
    /// How objects come to tiers.
    pub offload: Offload,
    /// What comes back from tiers to memory.
    pub promotion: Promotion,
    /// Time that no session has a tier after which it is Gone.
    pub tier_retention_ms: u64,
    /// How often what is written to a tier may fill it in a day; 0 for any.
    pub tier_fills_per_day: f64,
    /// Most records of objects that one tier has, whatever more its owner would have.
    pub tier_records_max: u64,
    /// Most memory for what operations change beside a snapshot that has not come to it, bytes. With more the snapshot
    /// is given up; operations never wait for one.
    pub snapshot_aside_max: usize,
    /// Seed of the placement's random choices.
    pub seed: u64,
    /// Seed of what epochs draw, by which two cores that continue one log are told apart: it must be random itself.
    pub epoch_seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            lookup_protect_ms: 2_000,
            reservation_ms: 30_000,
            away_ms: 2_000,
            retention_ms: 600_000,
            busy_wait_ms: 500,
            full_wait_ms: 1_000,
            sessions_max: 32_768,
            unanswered_max: 1_024,
            unfinished_share_max: 0.5,
            placement: PlacementStrategy::Random,
            high_watermark: 1.0,
            eviction_share: 0.05,
            evict_soft_pinned: true,
            soft_pin_ttl_max_ms: 24 * 3600 * 1000,
            tiers_allowed: true,
            shared_storage: None,
            offload: Offload::default(),
            promotion: Promotion::default(),
            tier_retention_ms: 7 * 24 * 3600 * 1000,
            tier_fills_per_day: 0.0,
            tier_records_max: 10_000_000,
            snapshot_aside_max: 64 << 20,
            seed: 0x6d6f_6f6e_6361_6b65,
            epoch_seed: 0x7265_6967_6e73_0001,
        }
    }
}

/// By so much the renewal of a protection that lasts so long may be late.
pub(crate) fn renewal_ms(protect_ms: u64) -> u64 {
    protect_ms / 8
}

impl Config {
    /// How long a put waits for room. One that spares what its call has stored waits until everything that was looked
    /// up before it came has had its second.
    pub(crate) fn full_wait_of(&self, put: &PutConfig) -> u64 {
        self.full_wait_ms + put.first_rid.map_or(0, |_| renewal_ms(self.lookup_protect_ms))
    }
}

/// How objects come to tiers, where there are any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offload {
    /// Only what would be evicted soon is written; else everything, in order of commit.
    pub on_evict: bool,
    /// A put that needs room waits for no disk.
    pub force_evict: bool,
}

/// What comes back from tiers to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promotion {
    /// What an existence query finds on a tier alone, where there is room for it: it is read next.
    pub prefetch: bool,
    /// What was read often enough.
    pub on_hit: bool,
    /// How often that is, of late.
    pub threshold: u8,
}

impl Default for Promotion {
    fn default() -> Self {
        Promotion { prefetch: true, on_hit: false, threshold: 2 }
    }
}

/// `--allocation_strategy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PlacementStrategy {
    /// A uniformly random segment, then its neighbours.
    #[default]
    Random,
    /// The emptiest of a sample of six.
    FreeRatioFirst,
    /// The writer's own host first, then random.
    LocalFirst,
}

/// A folder of a file system that sessions share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedStorage {
    /// Where each host has the file system, or a folder of it.
    pub root: String,
    /// Name of the folder in it that this pool has.
    pub cluster_id: String,
    /// Bytes that all tiers there may have together; 0: nine tenths of the file system.
    pub quota_bytes: u64,
    /// What is oldest there goes when they have them; otherwise nothing more is written.
    pub evicts: bool,
}

impl SharedStorage {
    /// The folder of this pool.
    pub fn folder(&self) -> String {
        format!("{}/{}", self.root.trim_end_matches('/'), self.cluster_id)
    }
}
