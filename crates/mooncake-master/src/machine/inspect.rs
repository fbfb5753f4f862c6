//! What operators look at: it protects nothing and is counted nowhere. It is copied from the core in slices, and put
//! into words without it.

use std::collections::BTreeMap;

use mooncake_core::{Core, Found, SegmentNo};
use mooncake_ids::{SessionId, TIER_BLOCK};
use mooncake_wire::message;
use prost::Message;

use super::SLICE;
use super::core_driver::CoreDriver;

/// Where objects are.
#[derive(Debug, Default)]
pub struct Inspected {
    /// What there is under each key, in their order.
    pub found: Vec<Option<Found>>,
    /// The segments that those are on.
    pub segments: BTreeMap<SegmentNo, NamedSegment>,
}

/// A segment that has something of them.
#[derive(Debug)]
pub struct NamedSegment {
    /// Its name.
    pub name: String,
    /// The session whose tier it is, if it is one.
    pub tier_of: Option<SessionId>,
    /// Of a tier on a file system that clients share: its folder, and the blocks of one of its files.
    pub shared: Option<(String, u64)>,
    endpoint: Vec<u8>,
}

impl NamedSegment {
    /// The file of a file system that clients share which has an address, bytes since the tier's first one.
    pub fn file_path(&self, address: u64) -> Option<String> {
        let (folder, file_blocks) = self.shared.as_ref()?;
        Some(format!("{folder}/{:016x}.records", address / TIER_BLOCK / file_blocks))
    }

    /// How peers reach it.
    pub fn endpoint(&self) -> message::Endpoint {
        message::Endpoint::decode(&self.endpoint[..]).unwrap_or_default()
    }
}

impl Inspected {
    /// Looks at what is under these keys.
    pub fn of<D: CoreDriver>(driver: &D, keys: &[&[u8]]) -> Inspected {
        let mut inspected = Inspected { found: Vec::with_capacity(keys.len()), segments: BTreeMap::new() };
        for some in keys.chunks(SLICE) {
            driver.read(|core, _| some.iter().for_each(|key| inspected.add(core, key)));
        }
        inspected
    }

    /// Looks at what is under one more.
    pub fn add(&mut self, core: &Core, key: &[u8]) {
        let found = core.peek(key).map(|found| found.to_found());
        for number in found.iter().flat_map(|found| &found.replicas).map(|replica| replica.extent.segment) {
            if let std::collections::btree_map::Entry::Vacant(vacant) = self.segments.entry(number)
                && let Some(place) = place_of(core, number)
            {
                vacant.insert(place);
            }
        }
        self.found.push(found);
    }
}

fn place_of(core: &Core, number: SegmentNo) -> Option<NamedSegment> {
    if let Some(view) = core.segment(number) {
        return Some(NamedSegment {
            name: view.name.to_owned(),
            tier_of: None,
            shared: None,
            endpoint: view.endpoint.to_vec(),
        });
    }
    let view = core.tier(number)?;
    let (name, endpoint) = (view.spec.name.clone(), view.spec.endpoint.to_vec());
    let shared = view.shared_folder().map(|folder| (folder, view.spec.file_blocks));
    Some(NamedSegment { name, tier_of: Some(view.session), shared, endpoint })
}
