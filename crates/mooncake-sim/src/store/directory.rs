//! What the master says of segments.

use std::time::Duration;

use mooncake_client::machine::numbering::Numbering;
use mooncake_wire::message::{Replica, Segment, Segments, reply, request};

use crate::store::Store;
use crate::store::calls::NoAnswer;
use crate::store::links::Address;
use crate::world::ProcessId;

impl Store {
    /// Where the segment of a placement is, if it has been met.
    pub(crate) fn find_segment(&self, numbering: Numbering, number: u32) -> Option<Address> {
        self.inner.directory.borrow().find(numbering, number).cloned()
    }

    /// Asks the master once for every segment of some placements not met before.
    pub(crate) async fn meet_segments<'r>(
        &self,
        numbering: Numbering,
        replicas: impl Iterator<Item = &'r Replica>,
        timeout: Duration,
    ) -> Result<(), NoAnswer> {
        let missing = self.inner.directory.borrow().missing(numbering, replicas);
        if missing.is_empty() {
            return Ok(());
        }
        let reply = self.query(request::Body::Segments(Segments { numbers: missing }), timeout).await?;
        let reply::Body::Segments(found) = reply.body else { unreachable!("segments were asked for") };
        let segments = found.segments.iter().map(|segment| (segment.number, self.address(segment)));
        self.inner.directory.borrow_mut().met(reply.numbering, segments);
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
