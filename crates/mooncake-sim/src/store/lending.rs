//! What the product's owner of segments needs of a store.

use std::ops::DerefMut;
use std::time::Duration;

use mooncake_client::StoreError;
use mooncake_client::machine::lending::LendingDriver;
use mooncake_client::machine::owner::{Output, Owner, Pinned};
use mooncake_client::machine::position::epoch_of;
use mooncake_ids::SegmentUuid;
use mooncake_wire::message::{reply, request};

use crate::memory::Memory;
use crate::store::Store;
use crate::store::calls::LOOKUP_TIMEOUT;
use crate::store::puts::error_of;

impl LendingDriver for Store {
    type Memory = Memory;

    fn now(&self) -> Duration {
        self.inner.world.now()
    }

    fn owner(&self) -> impl DerefMut<Target = Owner<Memory>> {
        self.inner.owner.borrow_mut()
    }

    fn is_stopped(&self) -> bool {
        self.inner.stopped.get()
    }

    async fn finish(&self, _: &'static str, body: request::Body) -> Result<reply::Body, StoreError> {
        let reply = Store::finish(self, body, LOOKUP_TIMEOUT).await;
        reply.map(|reply| reply.body).map_err(|error| error_of(&error))
    }

    async fn finish_now(&self, _: &'static str, body: request::Body) -> Result<reply::Body, StoreError> {
        let reply = Store::finish_now(self, body, LOOKUP_TIMEOUT).await;
        reply.map(|reply| reply.body).map_err(|error| error_of(&error))
    }

    fn confused(&self, _: &'static str) -> StoreError {
        unreachable!("masters of this world answer what they are asked")
    }

    fn resume_anew(&self) {
        self.resume();
    }

    fn mounted(&self, uuid: SegmentUuid, _: Memory) {
        self.server().mounted(uuid, epoch_of(&self.position()));
    }

    async fn wait_for_pins(&self, uuid: SegmentUuid, until: Duration) {
        let inner = &self.inner;
        while inner.world.now() < until && inner.owner.borrow().waits_for_pins(uuid) {
            inner.world.sleep_micros(1_000).await;
        }
    }

    async fn free(&self, memory: &Memory, pinned: Option<&Pinned>) {
        self.server().remove(memory.uuid()).await;
        if let Some(pinned) = pinned {
            memory.give_back(pinned);
        }
    }

    fn hand_over(&self, out: Vec<Output<Memory>>) {
        Store::hand_over(self, out);
    }
}
