//! Reports of bad replicas, many with one message. Where the read did not look the key up a second time, this does.

use mooncake_client::machine::suspects::Suspect;
use mooncake_wire::message::{BadReplica, Lookup, reply, request};
use mooncake_wire::pack_keys;

use crate::calls::{NoAnswer, PATIENCE};
use crate::store::Store;

impl Store {
    /// Has a replica reported.
    pub(crate) fn suspect_replica(&self, suspect: Suspect) {
        let world = &self.inner.world;
        let mut suspects = self.inner.suspects.borrow_mut();
        if suspects.add(world.now(), suspect) && !suspects.is_running() {
            suspects.set_running(true);
            let store = self.clone();
            world.spawn(self.inner.process, async move { store.report_suspects().await });
        }
    }

    async fn report_suspects(&self) {
        loop {
            let all = self.inner.suspects.borrow_mut().take(self.inner.world.now());
            if all.is_empty() {
                return;
            }
            if self.report_bad(&all).await.is_err() {
                self.inner.suspects.borrow_mut().forget(&all);
            }
        }
    }

    async fn report_bad(&self, suspects: &[Suspect]) -> Result<(), NoAnswer> {
        let (mut bad, unsure): (Vec<Suspect>, Vec<Suspect>) =
            suspects.iter().cloned().partition(|suspect| suspect.confirmed);
        if !unsure.is_empty() {
            let body = request::Body::Lookup(Lookup { keys: Some(pack_keys(&unsure)) });
            let answer = self.query(body, PATIENCE).await?;
            let reply::Body::Lookup(found) = answer.body else { unreachable!("a look-up was asked for") };
            let named = unsure.into_iter().zip(found.objects);
            let still = named.filter(|(suspect, object)| object.replicas.iter().any(|other| other.rid == suspect.rid));
            bad.extend(still.map(|(suspect, _)| suspect));
        }
        self.inner.tally.borrow_mut().suspects += bad.len() as u64;
        let named = |Suspect { key, rid, reason, .. }| BadReplica { key: key.into(), rid, reason, more: Vec::new() };
        let mut messages = bad.into_iter().map(named);
        let Some(first) = messages.next() else { return Ok(()) };
        let body = request::Body::BadReplica(BadReplica { more: messages.collect(), ..first });
        self.query(body, PATIENCE).await.map(drop)
    }
}
