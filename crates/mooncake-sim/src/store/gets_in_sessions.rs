//! Get sessions: what the product's ask of a store, carried out in this world, and what their callers do.

use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Duration;

use mooncake_client::machine::get::{Doubt, Unread};
use mooncake_client::machine::get_session::{self, Found, GetSessionDriver, GetSessions};
use mooncake_client::machine::numbering::Numbering;
use mooncake_client::{Cause, StoreError};
use mooncake_ids::{GRANULE, Rid};
use mooncake_wire::message::{Exists, Object, Replica, request};
use mooncake_wire::pack_keys;

use crate::store::Store;
use crate::store::calls::LOOKUP_TIMEOUT;
use crate::store::links::{self, Address};
use crate::store::puts::error_of;
use crate::store::puts_in_sessions::NO_LINK;

/// Rids of an object's replicas, each with its segment.
pub struct MetSegments(Vec<(Rid, Option<Address>)>);

/// A store's get sessions.
pub(crate) type Sessions = GetSessions<MetSegments, Numbering>;

impl GetSessionDriver for Store {
    type MetSegments = MetSegments;

    fn get_sessions(&self) -> impl DerefMut<Target = Sessions> {
        self.inner.get_sessions.borrow_mut()
    }

    async fn protect(&self, keys: &[&[u8]]) -> Result<(), StoreError> {
        let body = request::Body::Exists(Exists { keys: Some(pack_keys(keys)), sizes: false });
        self.query(body, LOOKUP_TIMEOUT).await.map(drop).map_err(|error| error_of(&error))
    }

    fn met_segments(&self, object: &Object, numbering: Numbering) -> MetSegments {
        let met = |replica: &Replica| (Rid(replica.rid), self.find_segment(numbering, replica.extents[0].segment));
        MetSegments(object.replicas.iter().map(met).collect())
    }
}

impl Store {
    /// Looks objects up and reads parts of them for a while.
    pub async fn get_in_sessions(self, stops: Duration) {
        let world = self.inner.world.clone();
        while self.goes_on(stops) {
            self.pause(60_000).await;
            let keys: Vec<Vec<u8>> = (0..=world.below(2)).map(|_| self.key()).collect();
            let names: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            let started = get_session::start(&self, &names).await;
            for _ in 0..world.below(8) {
                world.sleep_micros(world.below([500, 100_000, 2_000_000][world.below(3) as usize])).await;
                for (key, _) in names.iter().zip(&started).filter(|(_, started)| started.is_ok()) {
                    let found = self.inner.get_sessions.borrow_mut().find(key);
                    let Ok(found) = found else { continue };
                    let read = self.read_part(key, &found).await;
                    let is_over = read.is_err_and(|error| matches!(error.cause(), Cause::SessionOver { .. }));
                    let mut tally = self.inner.tally.borrow_mut();
                    match is_over {
                        true => tally.lost_sessions += 1,
                        false => tally.read_parts += 1,
                    }
                }
            }
            let mut sessions = self.inner.get_sessions.borrow_mut();
            names.iter().zip(&started).filter(|(_, started)| started.is_ok()).for_each(|(key, _)| sessions.end(key));
        }
    }

    async fn read_part(&self, key: &[u8], found: &Arc<Found<MetSegments, Numbering>>) -> Result<(), StoreError> {
        self.check()?;
        let _calling = self.inner.network.whims.begin_call(&self.inner.world);
        let granules = found.object.size / GRANULE;
        let first = self.inner.world.below(granules);
        let count = 1 + self.inner.world.below(granules - first);
        get_session::read(self, key, found, async |replica: &Replica| {
            let lost = |what: &str| Unread {
                error: Cause::Transfer(what.into()).into(),
                doubt: Doubt::None,
                passing: what == NO_LINK,
            };
            let closed = || Unread { error: Cause::Closed.into(), doubt: Doubt::None, passing: false };
            let met = found.met.0.iter().find(|(rid, _)| rid.0 == replica.rid);
            let address = met.and_then(|(_, address)| address.as_ref()).ok_or_else(|| lost("it has left the pool"))?;
            let link = self.link_to(address).await;
            let link = link.ok_or_else(|| if self.inner.links.are_closed() { closed() } else { lost(NO_LINK) })?;
            let from = replica.extents[0].offset + first * GRANULE;
            match self.read(&link, Rid(replica.rid), from, count * GRANULE).await {
                Ok(words) => {
                    self.inner.network.ledger.was_read_from(key, Rid(replica.rid), first, &words);
                    Ok(())
                }
                Err(links::Unread::Stale) => Err(Unread { doubt: Doubt::Stale, ..lost("stale") }),
                Err(links::Unread::Lost) => Err(lost("not read")),
                Err(links::Unread::Interrupted) => {
                    Err(Unread { error: Cause::Interrupted.into(), doubt: Doubt::None, passing: false })
                }
            }
        })
        .await
    }
}
