//! Where objects lie, for callers that want to know.

use std::collections::HashMap;

use mooncake_tier::address::{BLOCK, FileNumber};
use mooncake_wire::message::{Describe, DescribeReply, SegmentName, reply, request};
use mooncake_wire::pack_keys;

use crate::error::StoreError;
use crate::inner::Inner;
use crate::key::check_key;
use crate::machine::rounds::rounds;

/// Keys asked about with one request.
const ROUND_KEYS: usize = 16_384;

/// Whether a replica can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReplicaStatus {
    /// It can. Others are not told.
    Complete,
}

/// What a replica lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReplicaKind {
    /// Memory of a client.
    Memory,
    /// The tier of a client, on a disk of its host.
    LocalDisk,
    /// A tier on a file system that clients share.
    Disk,
}

/// One replica of an object, as it was when it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaDescriptor {
    /// Number of this replica; never another one's.
    pub id: u64,
    /// Whether it can be read.
    pub status: ReplicaStatus,
    /// What it lies in.
    pub kind: ReplicaKind,
    /// Size of the object, bytes.
    pub size: u64,
    /// First byte in its segment: the same for as long as the replica lies there. Of a record in a tier, its own.
    pub address: u64,
    /// Name of its segment: the client's that lends the memory, or has the tier.
    pub endpoint: String,
    /// The file that has it, of a tier on a file system that clients share; empty otherwise.
    pub file_path: String,
}

impl Inner {
    /// Per key: its readable replicas, `None` if it is not there.
    pub(crate) fn describe(
        &self,
        keys: &[impl AsRef<[u8]>],
    ) -> Result<Vec<Option<Vec<ReplicaDescriptor>>>, StoreError> {
        let mut results = Vec::with_capacity(keys.len());
        for round in rounds(keys, ROUND_KEYS) {
            let valid: Vec<&[u8]> = round.iter().map(AsRef::as_ref).filter(|key| check_key(key).is_ok()).collect();
            let mut described = match valid.is_empty() {
                true => Vec::new(),
                false => self.ask_where(&valid)?,
            }
            .into_iter();
            // A key that no object can have is not there.
            results
                .extend(round.iter().map(|key| check_key(key.as_ref()).ok().and_then(|()| described.next().flatten())));
        }
        Ok(results)
    }

    fn ask_where(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<ReplicaDescriptor>>>, StoreError> {
        const WHAT: &str = "a query for replicas";
        let control = &self.shared.control;
        let body = request::Body::Describe(Describe { keys: Some(pack_keys(keys)) });
        match control.query(WHAT, body, control.lookup_timeout)?.body {
            reply::Body::Describe(reply) if reply.objects.len() == keys.len() => Ok(descriptors(reply)),
            _ => Err(control.confused(WHAT)),
        }
    }
}

fn descriptors(reply: DescribeReply) -> Vec<Option<Vec<ReplicaDescriptor>>> {
    let segments: HashMap<u32, SegmentName> =
        reply.segments.into_iter().map(|segment| (segment.number, segment)).collect();
    let of = |object: mooncake_wire::message::Object| {
        let replicas = object.replicas.iter().filter_map(|replica| {
            let extent = replica.extents.first()?;
            let segment = segments.get(&extent.segment)?;
            let file = match segment.shared_folder.as_str() {
                "" => None,
                folder => {
                    let number = (extent.offset / BLOCK).checked_div(segment.file_blocks)?;
                    Some(format!("{folder}/{}", FileNumber(number).name()))
                }
            };
            let kind = match (segment.tier, &file) {
                (true, Some(_)) => ReplicaKind::Disk,
                (true, None) => ReplicaKind::LocalDisk,
                (false, _) => ReplicaKind::Memory,
            };
            Some(ReplicaDescriptor {
                id: replica.rid,
                status: ReplicaStatus::Complete,
                kind,
                size: object.size,
                address: extent.offset,
                endpoint: segment.name.clone(),
                file_path: file.unwrap_or_default(),
            })
        });
        let replicas: Vec<_> = replicas.collect();
        (!replicas.is_empty()).then_some(replicas)
    };
    reply.objects.into_iter().map(of).collect()
}
