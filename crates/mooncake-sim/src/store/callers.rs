//! What the threads of an engine do with their store.

use std::time::Duration;

use mooncake_client::machine::lending;
use mooncake_client::machine::owner::{Output, Pinned};
use mooncake_client::{Cause, PutOutcome, SegmentId};
use mooncake_ids::SegmentUuid;
use mooncake_wire::message::{ClearReplicas, Endpoint, Mount, Remove, Segment, request};
use mooncake_wire::pack_keys;

use crate::master::identity_of;
use crate::memory::Memory;
use crate::store::Store;
use crate::store::calls::{IfUnanswered, LOOKUP_TIMEOUT};
use crate::store::puts::{Item, Options};
use crate::world::Slot;

/// Granules of the largest values.
pub(crate) const LARGEST: u64 = 4;

/// Granules of each value that is to show whether a key can be put.
pub(crate) const REPLACEMENT: u64 = 2;

/// The name of one of the objects that there may be.
pub fn key(number: u64) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

impl Store {
    pub(crate) fn key(&self) -> Vec<u8> {
        key(self.inner.world.below(self.inner.network.mix.keys))
    }

    /// Whether its callers go on until then.
    pub(crate) fn goes_on(&self, stops: Duration) -> bool {
        self.inner.world.now() < stops && !self.is_closed()
    }

    pub(crate) async fn pause(&self, micros: u64) {
        self.inner.world.sleep_micros(1_000 + self.inner.world.below(micros)).await;
    }

    /// Lends memory to the pool, and other memory in the place of what is gone: what the owner's thread does.
    /// Sometimes it takes a segment out of the pool, and gives another one.
    pub async fn lend(self, stops: Duration) {
        while self.session_id().is_none() {
            self.pause(20_000).await;
        }
        while !self.is_closed() && !self.mount(None).await {
            self.pause(100_000).await;
        }
        loop {
            let next = self.inner.work.borrow_mut().pop_front();
            if next.is_none() && self.inner.work_ends.get() {
                return self.server().shut_down().await;
            }
            match next {
                Some(Output::GiveBack { memory, pinned }) => self.part_with(&memory, pinned.as_ref()).await,
                Some(Output::Replace { id, .. }) => {
                    while !self.is_closed() && !self.mount(Some(id)).await {
                        self.pause(100_000).await;
                    }
                }
                None if self.goes_on(stops) && self.inner.world.below(400) == 0 => self.unmount().await,
                None => self.pause(20_000).await,
            }
        }
    }

    async fn mount(&self, id: Option<SegmentId>) -> bool {
        let inner = &self.inner;
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&inner.world.number().to_le_bytes());
        let uuid = SegmentUuid(uuid);
        let memory = Memory::new(&inner.network.ledger, uuid, inner.network.mix.granules);
        self.server().add(memory.clone());
        let process = identity_of(&inner.world, inner.process, inner.host.boot_id());
        let segment = Segment {
            uuid: uuid.0.to_vec().into(),
            name: format!("host-{}", inner.process.0),
            bytes: memory.bytes(),
            endpoint: Some(Endpoint {
                boot_id: inner.host.boot_id().to_vec().into(),
                process: Some(process),
                ..Endpoint::default()
            }),
            ..Segment::default()
        };
        let mount = Mount { segment: Some(segment), populated: memory.bytes() };
        let mounted = lending::mount(self, id, (uuid, memory), mount).await;
        mounted.map(|id| inner.names.borrow_mut().insert(uuid, id)).is_ok()
    }

    /// Takes the segment out of the pool, and gives another one once it is gone.
    async fn unmount(&self) {
        let Some((uuid, _)) = self.held().first().copied() else { return };
        let Some(id) = self.inner.names.borrow().get(&uuid).copied() else { return };
        let mut grace = Duration::from_millis([0, 0, 200][self.inner.world.below(3) as usize]);
        while self.held().iter().any(|(held, _)| *held == uuid) {
            let _ = lending::unmount(self, id, grace).await;
            self.inner.world.sleep(grace + Duration::from_millis(300)).await;
            // A log that lost its end has forgotten that it was to leave.
            grace = Duration::ZERO;
            // What has been given back has to be so before there is room.
            while let Some(Output::GiveBack { memory, pinned }) = self.next_give_back() {
                self.part_with(&memory, pinned.as_ref()).await;
            }
        }
        while self.held().is_empty() && self.inner.work.borrow().is_empty() {
            if self.is_closed() || self.mount(None).await {
                break;
            }
            self.pause(100_000).await;
        }
    }

    fn next_give_back(&self) -> Option<Output<Memory>> {
        let mut work = self.inner.work.borrow_mut();
        if matches!(work.front(), Some(Output::GiveBack { .. })) { work.pop_front() } else { None }
    }

    async fn part_with(&self, memory: &Memory, pinned: Option<&Pinned>) {
        lending::give_back(self, memory.uuid(), memory, pinned).await;
    }

    /// Puts objects, one or a few at a time.
    pub async fn put(self, stops: Duration) {
        let world = self.inner.world.clone();
        while self.goes_on(stops) {
            self.pause(60_000).await;
            let items: Vec<Item> = (0..[1, 2, 2, 4][world.below(4) as usize])
                .map(|_| Item { key: self.key(), value: world.number() >> 16, granules: 1 + world.below(LARGEST) })
                .collect();
            let options = Options {
                replicas: 1 + u32::from(world.percent(self.inner.network.mix.replicas)),
                replace: world.percent(50),
                pace: [300, 3_000, self.inner.network.mix.pace][world.below(3) as usize],
            };
            for (item, outcome) in items.iter().zip(self.put_batch(&items, &options).await) {
                let mut tally = self.inner.tally.borrow_mut();
                match outcome {
                    Ok(PutOutcome::Stored { .. }) => {
                        tally.puts += 1;
                        self.inner.network.ledger.acknowledged(item.value);
                    }
                    Ok(PutOutcome::Existed) => {}
                    Err(error) => {
                        tally.failed_puts += 1;
                        if matches!(error.cause(), Cause::Interrupted) {
                            self.inner.network.ledger.interrupted(item.value);
                        }
                    }
                }
            }
        }
    }

    /// Puts each key in the place of what is there. Gives the keys that could not be put.
    pub(crate) fn put_each(&self, keys: Vec<Vec<u8>>) -> Slot<Vec<Vec<u8>>> {
        let (store, done) = (self.clone(), Slot::new(&self.inner.world));
        let outcome = done.clone();
        self.inner.world.spawn(self.inner.process, async move {
            let mut stuck = Vec::new();
            for key in keys {
                let item = Item { key: key.clone(), value: store.inner.world.number() >> 16, granules: REPLACEMENT };
                let options = Options { replicas: 1, replace: true, pace: 300 };
                let put = store.put_batch(&[item], &options).await;
                if !matches!(put[..], [Ok(PutOutcome::Stored { .. })]) {
                    stuck.push(key);
                }
            }
            outcome.set(stuck);
        });
        done
    }

    /// Gets each key a few times, as far as it is needed. Gives the keys that could not be had.
    pub(crate) fn get_each(&self, keys: Vec<Vec<u8>>) -> Slot<Vec<Vec<u8>>> {
        let (store, done) = (self.clone(), Slot::new(&self.inner.world));
        let outcome = done.clone();
        self.inner.world.spawn(self.inner.process, async move {
            let mut missed = keys;
            for _ in 0..4 {
                let names: Vec<&[u8]> = missed.iter().map(Vec::as_slice).collect();
                let found = store.get_batch(&names).await;
                let mut had = found.iter().map(|found| matches!(found, Ok(Some(_))));
                missed.retain(|_| !had.next().unwrap_or_default());
                store.inner.world.sleep(Duration::from_secs(2)).await;
            }
            outcome.set(missed);
        });
        done
    }

    /// Gets some.
    pub async fn get(self, stops: Duration) {
        while self.goes_on(stops) {
            self.pause(30_000).await;
            let found = self.get_batch(&[&self.key()]).await;
            let mut tally = self.inner.tally.borrow_mut();
            match found.into_iter().next() {
                Some(Ok(Some(_))) => tally.gets += 1,
                Some(Ok(None)) => tally.misses += 1,
                _ => {}
            }
        }
    }

    /// Removes some.
    pub async fn remove(self, stops: Duration) {
        let mut turn = 0_u32;
        while self.goes_on(stops) {
            self.pause(400_000).await;
            let _calling = self.inner.network.whims.begin_call(&self.inner.world);
            let keys = Some(pack_keys(&[self.key()]));
            // By turns, so that no chance is taken that other schedules have.
            turn += 1;
            let body = match turn % 4 {
                0 => request::Body::ClearReplicas(ClearReplicas { keys, segment: String::new() }),
                _ => request::Body::Remove(Remove { keys, force: true }),
            };
            let _ = self.mutate(body, 2 * LOOKUP_TIMEOUT, IfUnanswered::Stays).await;
        }
    }

    /// Takes views, holds them for a while, and ends them.
    pub async fn view(self, stops: Duration) {
        while self.goes_on(stops) {
            self.pause(60_000).await;
            if let Some(view) = self.borrow(&self.key()).await {
                self.inner.tally.borrow_mut().views += 1;
                self.inner
                    .world
                    .sleep_micros(10_000 + self.inner.world.below(self.inner.network.mix.view_micros))
                    .await;
                drop(view);
            }
        }
    }

    /// Takes two views of an object at a time, and ends one after the other.
    pub async fn view_twice(self, stops: Duration) {
        let world = self.inner.world.clone();
        while self.goes_on(stops) {
            self.pause(60_000).await;
            let key = self.key();
            let (one, other) = (self.borrow(&key).await, self.borrow(&key).await);
            drop(one);
            world.sleep_micros(world.below(400_000)).await;
            drop(other);
        }
    }

    /// Takes views of the same object again and again, most of them for a moment.
    pub async fn view_again(self, stops: Duration) {
        let world = self.inner.world.clone();
        while self.goes_on(stops) {
            let key = self.key();
            for _ in 0..12 {
                self.pause(6_000).await;
                if let Some(view) = self.borrow(&key).await {
                    self.inner.tally.borrow_mut().views += 1;
                    world.sleep_micros([500, 8_000, 400_000][world.below(3) as usize]).await;
                    drop(view);
                }
            }
        }
    }
}
