//! Where objects lie, and what this store gives to the pool besides its first segment.

use std::path::Path;
use std::time::Duration;

use mooncake_client::{ReplicaDescriptor, ReplicaKind, SegmentId, StoreError};
use pyo3::prelude::*;

use crate::code::{INVALID_PARAMS, OK};
use crate::entry::{failed, refused};
use crate::store::class::MooncakeDistributedStore;

/// Memory is given in steps of so many bytes, as Mooncake does.
const STEP_BYTES: u64 = 16 << 20;

/// A replica of an object: id, size, address in its segment, name of the segment, whether that is memory, and the file
/// that has it, of a file system that clients share.
pub type ReplicaTuple = (u64, u64, u64, String, bool, String);

/// A code, the ids of the segments, and their bytes.
pub type Mounted = (i64, Vec<String>, u64);

impl MooncakeDistributedStore {
    /// The replicas of each object; None for an object that is not there.
    pub(crate) fn describe_keys(&self, py: Python<'_>, name: &str, keys: &[&[u8]]) -> Vec<Option<Vec<ReplicaTuple>>> {
        let Some(client) = self.client(name) else { return vec![None; keys.len()] };
        match py.detach(|| client.describe(keys)) {
            Ok(found) => {
                if found.contains(&None) {
                    self.missing(&client);
                }
                let replicas = |replicas: Vec<ReplicaDescriptor>| {
                    let replica = |replica: ReplicaDescriptor| {
                        let is_memory = replica.kind == ReplicaKind::Memory;
                        (replica.id, replica.size, replica.address, replica.endpoint, is_memory, replica.file_path)
                    };
                    replicas.into_iter().map(replica).collect()
                };
                found.into_iter().map(|found| found.map(replicas)).collect()
            }
            Err(error) => {
                failed(self.errors(), &error);
                vec![None; keys.len()]
            }
        }
    }

    /// Fresh memory for the pool.
    pub(crate) fn give_memory(&self, py: Python<'_>, name: &str, bytes: u64) -> Mounted {
        let Some(bytes) = bytes.checked_next_multiple_of(STEP_BYTES) else {
            return (refused(self.errors(), || format!("{name}: {bytes} bytes are too many")), Vec::new(), 0);
        };
        let Some(client) = self.client(name) else { return (INVALID_PARAMS, Vec::new(), 0) };
        self.mounted(py.detach(|| client.mount_memory(bytes)))
    }

    /// Part of a file for the pool.
    pub(crate) fn give_file(&self, py: Python<'_>, name: &str, path: &Path, offset: u64, bytes: u64) -> Mounted {
        let Some(client) = self.client(name) else { return (INVALID_PARAMS, Vec::new(), 0) };
        self.mounted(py.detach(|| client.mount_file(path, offset, bytes)))
    }

    fn mounted(&self, outcome: Result<(SegmentId, u64), StoreError>) -> Mounted {
        match outcome {
            Ok((id, bytes)) => (OK, vec![id.to_string()], bytes),
            Err(error) => (failed(self.errors(), &error), Vec::new(), 0),
        }
    }

    /// Takes segments out of the pool; the first failure of all.
    /// A store that is not set up has no tier, either.
    pub(crate) fn leave_tier(&self, py: Python<'_>, grace: u64) -> i64 {
        let Some(client) = self.live_client() else { return OK };
        let left = py.detach(|| client.leave_tier(Duration::from_secs(grace)));
        left.map_or_else(|error| failed(self.errors(), &error), |()| OK)
    }

    pub(crate) fn take_back(&self, py: Python<'_>, name: &str, ids: &[String], grace: u64) -> i64 {
        let Some(client) = self.client(name) else { return INVALID_PARAMS };
        let grace = Duration::from_secs(grace);
        ids.iter().fold(OK, |first, text| {
            let done = text.parse().and_then(|id: SegmentId| py.detach(|| client.unmount_segment(id, grace)));
            let code = done.map_or_else(|error| failed(self.errors(), &error), |()| OK);
            if first == OK { code } else { first }
        })
    }
}
