//! Views: what the product's view asks of a store, carried out in this world.

use std::rc::Rc;
use std::time::Duration;

use mooncake_client::machine::get::{Doubt, Unread};
use mooncake_client::machine::numbering::Numbering;
use mooncake_client::machine::pins::Pins;
use mooncake_client::machine::view::{HeldPin, ViewDriver, view};
use mooncake_client::{Cause, StoreError};
use mooncake_ids::Rid;
use mooncake_wire::message::{Extent, Object, Pin, reply, request};
use mooncake_wire::pack_keys;

use crate::memory::ledger::checksum;
use crate::store::Store;
use crate::store::calls::{IfUnanswered, LOOKUP_TIMEOUT};
use crate::store::links::{self, Link};
use crate::store::puts::error_of;

/// Bytes that the views of a store may hold.
const LIMIT: u64 = 64 << 10;

/// A pin, until it is dropped.
pub struct PinGuard {
    store: Store,
    held: HeldPin,
}

/// An object's bytes, in place or as a copy.
pub enum Borrowed {
    /// Ends before the pin does.
    Pinned(links::View, PinGuard),
    /// A copy of it.
    Copied,
}

impl AsMut<HeldPin> for PinGuard {
    fn as_mut(&mut self) -> &mut HeldPin {
        &mut self.held
    }
}

impl Drop for PinGuard {
    fn drop(&mut self) {
        // A process that was killed says nothing more.
        let inner = &self.store.inner;
        if inner.world.is_alive(inner.process) && self.held.end(&mut inner.pins.borrow_mut()) {
            self.store.ring();
        }
    }
}

impl ViewDriver for Store {
    type Link = Rc<Link>;
    type Guard = PinGuard;
    type Mapped = links::View;
    type View = Borrowed;

    fn pins<R>(&self, step: impl FnOnce(&mut Pins) -> R) -> R {
        step(&mut self.inner.pins.borrow_mut())
    }

    async fn pin(&self, keys: &[&[u8]]) -> Result<(Vec<Object>, Numbering), StoreError> {
        let body = request::Body::Pin(Pin { keys: Some(pack_keys(keys)) });
        let asked = self.mutate(body, LOOKUP_TIMEOUT, IfUnanswered::VoidsPins).await;
        let reply = asked.map_err(|error| error_of(&error))?;
        let reply::Body::Lookup(found) = reply.body else { unreachable!("a pin is answered by what it found") };
        Ok((found.objects, reply.numbering))
    }

    fn resume_anew(&self) {
        self.resume();
    }

    async fn pause(&self, time: Duration) {
        self.inner.world.sleep(time).await;
    }

    fn guard(&self, held: HeldPin) -> PinGuard {
        PinGuard { store: self.clone(), held }
    }

    async fn meet(&self, objects: &[Object], numbering: Numbering) -> Result<(), StoreError> {
        let replicas = objects.iter().flat_map(|object| &object.replicas);
        self.meet_segments(numbering, replicas, LOOKUP_TIMEOUT).await.map_err(|error| error_of(&error))
    }

    async fn link(&self, extent: &Extent, numbering: Numbering) -> Option<Rc<Link>> {
        let address = self.find_segment(numbering, extent.segment)?;
        self.inner.world.stall().await;
        self.link_to(&address).await
    }

    fn is_mapped(&self, link: &Rc<Link>) -> bool {
        !link.is_lane()
    }

    fn vouch_for(&self, link: &Rc<Link>) -> bool {
        self.is_waited_for(link)
    }

    async fn check(
        &self,
        link: &Rc<Link>,
        object: &Object,
        rid: Rid,
        extent: &Extent,
    ) -> Result<Option<links::View>, Unread> {
        let unread = |doubt| Unread { error: Cause::Transfer("no view".into()).into(), doubt, passing: false };
        match link.view(self, rid, extent.offset, object.size).await {
            Ok((view, words)) => {
                let seed = self.inner.world.seed();
                assert_eq!(
                    checksum(words.iter().copied()),
                    object.crc32c,
                    "seed {seed}: a view of {:#x} is torn",
                    rid.0
                );
                self.inner.network.ledger.assert_view_is_of_a_put(rid, &words);
                Ok(Some(view))
            }
            Err(links::Unread::Stale) => Err(unread(Doubt::Stale)),
            Err(links::Unread::Lost | links::Unread::Interrupted) => Err(unread(Doubt::None)),
        }
    }

    fn borrowed(&self, view: links::View, pin: PinGuard) -> Borrowed {
        Borrowed::Pinned(view, pin)
    }

    async fn copy(&self, keys: &[&[u8]]) -> Vec<Result<Option<Borrowed>, StoreError>> {
        let copies = self.get_batch(keys).await;
        copies.into_iter().map(|copy| copy.map(|bytes| bytes.map(|_| Borrowed::Copied))).collect()
    }
}

impl Store {
    /// A view of an object in place; none where it is not there, or a copy has to do.
    pub async fn borrow(&self, key: &[u8]) -> Option<Borrowed> {
        self.check().ok()?;
        let _calling = self.inner.network.whims.begin_call(&self.inner.world);
        let unmapped = &self.inner.unmapped_views;
        unmapped.set(unmapped.get() + 1);
        let viewed = view(self, &[key], LIMIT).await.pop();
        unmapped.set(unmapped.get() - 1);
        viewed?.ok()?.filter(|view| matches!(view, Borrowed::Pinned(..)))
    }
}
