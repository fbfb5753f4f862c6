//! Ids of sessions.

use serde::{Deserialize, Serialize};

/// One `setup()` of one store object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId(pub u64);
