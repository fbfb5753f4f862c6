//! Gets: what the product's get asks of a store, carried out in this world.

use mooncake_client::machine::get::{Doubt, GetDriver, LostReplica, Unread, read_any_replica, read_batch};
use mooncake_client::machine::numbering::Numbering;
use mooncake_client::machine::replica_reports::{self, ReplicaReport};
use mooncake_client::{Cause, StoreError};
use mooncake_ids::Rid;
use mooncake_wire::message::{Lookup, Object, Replica, reply, request};
use mooncake_wire::pack_keys;

use crate::memory::ledger::checksum;
use crate::store::Store;
use crate::store::calls::LOOKUP_TIMEOUT;
use crate::store::links;
use crate::store::puts::error_of;

impl GetDriver for Store {
    type Numbering = Numbering;

    async fn lookup(&self, keys: &[&[u8]]) -> Result<(Vec<Object>, Numbering), StoreError> {
        let body = request::Body::Lookup(Lookup { keys: Some(pack_keys(keys)) });
        let reply = self.query(body, LOOKUP_TIMEOUT).await.map_err(|error| error_of(&error))?;
        let reply::Body::Lookup(found) = reply.body else { unreachable!("a look-up was asked for") };
        let replicas = found.objects.iter().flat_map(|object| &object.replicas);
        self.meet_segments(reply.numbering, replicas, LOOKUP_TIMEOUT).await.map_err(|error| error_of(&error))?;
        Ok((found.objects, reply.numbering))
    }

    fn report_replica(&self, key: &[u8], rid: Rid, reason: String, confirmed: bool) {
        replica_reports::add(self, ReplicaReport { key: key.to_vec(), rid, reason, confirmed });
    }

    fn rank(&self, replica: &Replica, numbering: Numbering) -> u8 {
        let extent = replica.extents.first();
        match extent.and_then(|extent| self.find_segment(numbering, extent.segment)) {
            Some(address) if address.process == self.inner.process => 0,
            Some(address) if address.is_on_this_host => 1,
            Some(_) => 2,
            None => 3,
        }
    }

    fn next_call(&self) -> usize {
        self.inner.world.below(64) as usize
    }

    fn note_miss(&self, _: String) {
        self.inner.tally.borrow_mut().unread += 1;
    }
}

impl Store {
    /// Reads objects; bytes of each, none for a miss.
    pub async fn get_batch(&self, keys: &[&[u8]]) -> Vec<Result<Option<u64>, StoreError>> {
        if let Err(closed) = self.check() {
            return keys.iter().map(|_| Err(closed.clone())).collect();
        }
        let _calling = self.inner.network.whims.begin_call(&self.inner.world);
        let began = self.inner.network.ledger.moment();
        read_batch(self, keys, async |found: &[(usize, &Object)], numbering, lost: &mut Vec<LostReplica>| {
            let mut fetched = Vec::new();
            for (index, object) in found {
                let read = async |replica: &Replica| {
                    self.read_replica(keys[*index], object, replica, numbering).await?;
                    self.inner.network.ledger.was_there(Rid(replica.rid), began);
                    Ok(())
                };
                fetched.push(read_any_replica(self, keys[*index], object, numbering, lost, read).await);
            }
            fetched
        })
        .await
    }

    async fn read_replica(
        &self,
        key: &[u8],
        object: &Object,
        replica: &Replica,
        numbering: Numbering,
    ) -> Result<(), Unread> {
        let lost =
            |what: &str| Unread { error: Cause::Transfer(what.into()).into(), doubt: Doubt::None, passing: false };
        let [extent] = &replica.extents[..] else { unreachable!("an extent each") };
        let found = self.find_segment(numbering, extent.segment);
        let address = found.ok_or_else(|| lost("its segment has left the pool"))?;
        let closed = || Unread { error: Cause::Closed.into(), doubt: Doubt::None, passing: false };
        let link = self.link_to(&address).await;
        let link = link.ok_or_else(|| if self.inner.links.are_closed() { closed() } else { lost("no link") })?;
        match self.read(&link, Rid(replica.rid), extent.offset, object.size).await {
            Ok(words) => {
                let seed = self.inner.world.seed();
                // Under the right stamps are the right bytes.
                assert_eq!(checksum(words.iter().copied()), object.crc32c, "seed {seed}: {:#x} is torn", replica.rid);
                self.inner.network.ledger.was_read(key, Rid(replica.rid), &words);
                Ok(())
            }
            Err(links::Unread::Stale) => Err(Unread { doubt: Doubt::Stale, ..lost("stale") }),
            Err(links::Unread::Lost) => Err(lost("not read")),
            Err(links::Unread::Interrupted) => {
                Err(Unread { error: Cause::Interrupted.into(), doubt: Doubt::None, passing: false })
            }
        }
    }
}
