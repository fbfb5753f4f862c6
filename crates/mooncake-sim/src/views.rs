//! Views: objects borrowed in place.

use mooncake_client::machine::get::{Doubt, report_doubt};
use mooncake_client::machine::numbering::Numbering;
use mooncake_wire::message::{Object, Pin, Replica, reply, request};
use mooncake_wire::pack_keys;

use crate::calls::{Abandoned, PATIENCE};
use crate::ledger::checksum;
use crate::links::{self, View};
use crate::store::Store;

/// Pins are asked for again this often when the session was resumed meanwhile.
const ATTEMPTS: usize = 3;

/// An object's bytes and the pin that keeps them, until it is dropped.
pub(crate) struct Borrowed {
    // Ends before the pin does.
    view: Option<View>,
    store: Store,
    era: u64,
    rid: u64,
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        self.view = None;
        // A process that was killed says nothing more.
        if self.store.inner.world.is_alive(self.store.inner.process)
            && self.store.inner.pins.borrow_mut().release(self.era, self.rid)
        {
            self.store.ring();
        }
    }
}

impl Store {
    /// A view of an object; none where it is not there, or a copy would have to do.
    pub(crate) async fn borrow(&self, key: &[u8]) -> Option<Borrowed> {
        let unmapped = &self.inner.unmapped_views;
        unmapped.set(unmapped.get() + 1);
        let borrowed = self.pin_and_map(key).await;
        unmapped.set(unmapped.get() - 1);
        borrowed
    }

    async fn pin_and_map(&self, key: &[u8]) -> Option<Borrowed> {
        for _ in 0..ATTEMPTS {
            let generation = self.inner.pins.borrow().generation();
            let body = request::Body::Pin(Pin { keys: Some(pack_keys(&[key])) });
            let answer = self.mutate(body, PATIENCE, Abandoned::VoidsPins).await.ok()?;
            let reply::Body::Lookup(found) = answer.body else { unreachable!("a pin is answered by what it found") };
            let object = found.objects.first()?;
            let replica = object.replicas.first()?;
            let adopted = self.inner.pins.borrow_mut().adopt(generation, [replica.rid].into_iter());
            let Some(era) = adopted else {
                // The master was told meanwhile what this store holds, and this pin was not on the list; if it came after it,
                // it must go.
                self.resume_anew();
                continue;
            };
            let borrowed = Borrowed { view: None, store: self.clone(), era, rid: replica.rid };
            return self.look_at(key, object, answer.numbering, borrowed).await;
        }
        None
    }

    async fn look_at(
        &self,
        key: &[u8],
        object: &Object,
        numbering: Numbering,
        mut borrowed: Borrowed,
    ) -> Option<Borrowed> {
        self.meet(numbering, object.replicas.iter(), PATIENCE).await.ok()?;
        let Replica { rid, extents } = object.replicas.first()?;
        let [extent] = &extents[..] else { unreachable!("an extent each") };
        let address = self.inner.directory.borrow().find(numbering, extent.segment)?;
        let link = self.link(&address).await?;
        // The pin is counted since before the link was made: from here on nobody is told that this store obeys an epoch in
        // which no master knows it.
        let kept = self.vouch_for(&link) && self.inner.pins.borrow().is_known(borrowed.era, *rid);
        if link.is_lane() || !kept {
            return None;
        }
        match link.view(self, *rid, extent.offset, object.size).await {
            Ok((view, words)) => {
                let seed = self.inner.world.seed();
                assert_eq!(checksum(words.iter().copied()), object.crc32c, "seed {seed}: a view of {rid:#x} is torn");
                self.inner.network.ledger.was_read(key, *rid, &words);
                borrowed.view = Some(view);
                Some(borrowed)
            }
            Err(links::Unread::Stale) => {
                report_doubt(self, key, object, *rid, Doubt::Stale, "stale");
                None
            }
            Err(links::Unread::Lost) => None,
        }
    }
}
