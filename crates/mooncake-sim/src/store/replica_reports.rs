//! Reports of bad replicas: what the product's need of a store.

use std::ops::DerefMut;
use std::time::Duration;

use mooncake_client::StoreError;
use mooncake_client::machine::replica_reports::{ReplicaReport, ReplicaReportDriver, ReplicaReports, run};
use mooncake_wire::message::{BadReplica, Lookup, Object, reply, request};
use mooncake_wire::pack_keys;

use crate::store::Store;
use crate::store::calls::LOOKUP_TIMEOUT;
use crate::store::puts::error_of;

impl ReplicaReportDriver for Store {
    fn now(&self) -> Duration {
        self.inner.world.now()
    }

    fn reports(&self) -> impl DerefMut<Target = ReplicaReports> {
        self.inner.replica_reports.borrow_mut()
    }

    fn is_stopped(&self) -> bool {
        false
    }

    fn start_worker(&self) -> bool {
        let store = self.clone();
        self.inner.world.spawn(self.inner.process, async move { run(&store).await });
        true
    }

    async fn lookup(&self, keys: &[ReplicaReport]) -> Result<Vec<Object>, StoreError> {
        let body = request::Body::Lookup(Lookup { keys: Some(pack_keys(keys)) });
        let reply = self.query(body, LOOKUP_TIMEOUT).await.map_err(|error| error_of(&error))?;
        let reply::Body::Lookup(found) = reply.body else { unreachable!("a look-up was asked for") };
        Ok(found.objects)
    }

    async fn tell(&self, bad: BadReplica) -> Result<(), StoreError> {
        self.inner.tally.borrow_mut().replica_reports += 1 + bad.more.len() as u64;
        let body = request::Body::BadReplica(bad);
        self.query(body, LOOKUP_TIMEOUT).await.map(drop).map_err(|error| error_of(&error))
    }
}
