//! What a forked child does with its copy of a store: see [`crate::world::forks`].

use std::time::Duration;

use mooncake_client::{Cause, StoreError};
use mooncake_wire::message::{CloseSession, request};

use crate::store::Store;
use crate::store::calls::{LOOKUP_TIMEOUT, NoAnswer};
use crate::store::puts::{Item, Options};

/// A child tries its parent's store so often.
const BETWEEN: Duration = Duration::from_secs(1);

impl Store {
    /// What a forked child does with its copy of a store: it calls, and every call is refused.
    pub(crate) async fn live_on(self, handled: u64) {
        let (world, seed) = (self.inner.world.clone(), self.inner.world.seed());
        world.sleep_micros(handled).await;
        let is_forked = |error: &StoreError| matches!(error.cause(), Cause::Forked);
        loop {
            let item = Item { key: b"child".to_vec(), value: 1, granules: 1 };
            let options = Options { replicas: 1, replace: true, pace: 1 };
            let put = self.put_batch(&[item], &options).await;
            assert!(put[0].as_ref().is_err_and(is_forked), "seed {seed}: a forked child puts: {put:?}");
            let got = self.get_batch(&[b"child"]).await;
            assert!(got[0].as_ref().is_err_and(is_forked), "seed {seed}: a forked child gets: {got:?}");
            assert!(self.borrow(b"child").await.is_none(), "seed {seed}: a forked child has a view");
            let closed = self.finish(request::Body::CloseSession(CloseSession {}), LOOKUP_TIMEOUT).await;
            assert_eq!(closed.err(), Some(NoAnswer::Forked), "seed {seed}: a forked child closes a store");
            world.sleep(BETWEEN).await;
        }
    }
}
