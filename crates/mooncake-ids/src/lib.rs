//! Ids that master, owners, writers and readers write down alike, and the unit of space they all count in.
#![forbid(unsafe_code)]

mod file_system_uuid;
mod granule;
mod rid;
mod segment_uuid;
mod session_id;
mod tier_uuid;

pub use file_system_uuid::{FileSystemUuid, NotFileSystemUuid};
pub use granule::{GRANULE, TIER_BLOCK, TIER_OBJECT_PART, granules};
pub use rid::Rid;
pub use segment_uuid::{NotSegmentUuid, SegmentUuid};
pub use session_id::SessionId;
pub use tier_uuid::{NotTierUuid, TierUuid};
