//! Where segments are: the numbers of placements, resolved once.

use std::collections::BTreeMap;
use std::time::Duration;

use mooncake_client::machine::numbering::Numbering;
use mooncake_wire::message::{Replica, Segment, Segments, reply, request};

use crate::calls::NoAnswer;
use crate::links::Address;
use crate::store::Store;
use crate::world::ProcessId;

/// Segments met so far. Under another numbering it starts over.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    numbering: Numbering,
    segments: BTreeMap<u32, Address>,
}

impl Directory {
    pub fn find(&self, numbering: Numbering, number: u32) -> Option<Address> {
        if self.numbering == numbering { self.segments.get(&number).cloned() } else { None }
    }

    pub fn forget(&mut self, number: u32) {
        self.segments.remove(&number);
    }
}

impl Store {
    /// Asks the master once for every segment of some placements not met before.
    pub(crate) async fn meet_segments<'r>(
        &self,
        numbering: Numbering,
        replicas: impl Iterator<Item = &'r Replica>,
        patience: Duration,
    ) -> Result<(), NoAnswer> {
        let numbers = replicas.flat_map(|replica| &replica.extents).map(|extent| extent.segment);
        let missing: Vec<u32> = {
            let known = self.inner.directory.borrow();
            numbers.filter(|number| known.find(numbering, *number).is_none()).collect()
        };
        if missing.is_empty() {
            return Ok(());
        }
        let answer = self.query(request::Body::Segments(Segments { numbers: missing }), patience).await?;
        let reply::Body::Segments(found) = answer.body else { unreachable!("segments were asked for") };
        let mut known = self.inner.directory.borrow_mut();
        if known.numbering != answer.numbering {
            *known = Directory { numbering: answer.numbering, segments: BTreeMap::new() };
        }
        for segment in found.segments {
            known.segments.insert(segment.number, self.address(&segment));
        }
        Ok(())
    }

    fn address(&self, segment: &Segment) -> Address {
        let endpoint = segment.endpoint.as_ref().expect("every owner of this world has one");
        let process = ProcessId(endpoint.process.as_ref().expect("and says who it is").pid);
        let uuid = segment.uuid[..].try_into().expect("16 bytes");
        let is_on_this_host = endpoint.boot_id[..] == self.inner.host.boot_id()[..];
        Address { uuid, process, is_on_this_host }
    }
}
