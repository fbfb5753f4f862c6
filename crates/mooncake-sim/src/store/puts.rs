//! Puts: what the product's put asks of a store, carried out in this world.

use std::time::Duration;

use mooncake_client::machine::call::Session as _;
use mooncake_client::machine::numbering::Numbering;
use mooncake_client::machine::put::{self, PlacedKey, PutDriver, Written, write_key};
use mooncake_client::{Cause, PutOutcome, StoreError};
use mooncake_ids::{GRANULE, Rid};
use mooncake_wire::message::{Abort, Ended, PutConfig, PutEnd, PutSlot, PutStart, Replica, reply, request};
use mooncake_wire::pack_keys;

use crate::memory::ledger::{checksum, word};
use crate::server::lane::Unwritten;
use crate::store::calls::{IfUnanswered, LOOKUP_TIMEOUT, NoAnswer};
use crate::store::links::{Address, Piece};
use crate::store::{Session, Store};

/// Longest that the master parks a put, and some.
const PARK_TIME_MAX: Duration = Duration::from_millis(2_500);

/// One object to be put.
pub struct Item {
    /// Its name.
    pub key: Vec<u8>,
    /// What its words are made of.
    pub value: u64,
    /// Its size.
    pub granules: u64,
}

/// What becomes of them.
pub struct Options {
    /// Replicas of each, on segments of different processes.
    pub replicas: u32,
    /// In the place of what is there.
    pub replace: bool,
    /// Longest time between two granules, microseconds.
    pub pace: u64,
}

pub(crate) struct Driver<'a> {
    pub store: &'a Store,
    pub items: &'a [Item],
    pub options: &'a Options,
}

/// Where a reservation comes from.
#[derive(Debug, Clone)]
pub(crate) struct ReservationOrigin {
    pub numbering: Numbering,
    pub session: Session,
}

impl put::ReservationOrigin for ReservationOrigin {
    fn is_of_session(&self, other: &Self) -> bool {
        self.session.is(&other.session)
    }
}

impl Store {
    /// Puts objects; what became of each.
    pub async fn put_batch(&self, items: &[Item], options: &Options) -> Vec<Result<PutOutcome, StoreError>> {
        if let Err(closed) = self.check() {
            return items.iter().map(|_| Err(closed.clone())).collect();
        }
        let _calling = self.inner.network.whims.begin_call(&self.inner.world);
        let sizes: Vec<u64> = items.iter().map(|item| item.granules * GRANULE).collect();
        let driver = Driver { store: self, items, options };
        put::put(&driver, &sizes, items.iter().map(|_| None).collect(), Duration::from_secs(5)).await
    }
}

pub(crate) fn error_of(error: &NoAnswer) -> StoreError {
    match error {
        NoAnswer::Closed => Cause::Closed.into(),
        NoAnswer::Interrupted => Cause::Interrupted.into(),
        NoAnswer::Forked => Cause::Forked.into(),
        NoAnswer::Refused(reason) => {
            Cause::BadRequest { master: "the master".into(), what: "a call", reason: reason.clone() }.into()
        }
        NoAnswer::Late => Cause::Transfer("late".into()).into(),
    }
}

impl PutDriver for Driver<'_> {
    type ReservationOrigin = ReservationOrigin;

    fn now(&self) -> Duration {
        self.store.inner.world.now()
    }

    fn key_bytes(&self, index: usize) -> usize {
        self.items[index].key.len()
    }

    fn replicas(&self) -> usize {
        self.options.replicas as usize
    }

    fn is_current(&self, origin: &ReservationOrigin) -> bool {
        self.store.session().is_some_and(|session| session.is(&origin.session))
    }

    async fn reserve(
        &self,
        indices: &[usize],
        wait: bool,
        first_rid: Rid,
    ) -> Result<(Vec<PutSlot>, ReservationOrigin), StoreError> {
        let keys: Vec<&[u8]> = indices.iter().map(|&index| &self.items[index].key[..]).collect();
        let Options { replicas, replace, .. } = *self.options;
        let start = PutStart {
            keys: Some(pack_keys(&keys)),
            sizes: indices.iter().map(|&index| self.items[index].granules * GRANULE).collect(),
            config: Some(PutConfig { replica_num: replicas, replace, first_rid: first_rid.0, ..PutConfig::default() }),
            wait,
            groups: None,
        };
        let timeout = LOOKUP_TIMEOUT + if wait { PARK_TIME_MAX } else { Duration::ZERO };
        let asked = self.store.mutate(request::Body::PutStart(start), timeout, IfUnanswered::AbortsPlacements).await;
        let reply = asked.map_err(|error| error_of(&error))?;
        let reply::Body::PutStart(started) = reply.body else { unreachable!("a put was started") };
        Ok((started.slots, ReservationOrigin { numbering: reply.numbering, session: reply.session }))
    }

    async fn meet(&self, origin: &ReservationOrigin, placed: &[PlacedKey]) -> Result<(), StoreError> {
        let replicas = placed.iter().flat_map(|placed| &placed.slot.replicas);
        self.store.meet_segments(origin.numbering, replicas, LOOKUP_TIMEOUT).await.map_err(|error| error_of(&error))
    }

    async fn write_all(
        &self,
        origin: &ReservationOrigin,
        placed: &[PlacedKey],
    ) -> (Vec<Result<Written, put::Unwritten>>, bool) {
        let inner = &self.store.inner;
        let rids = placed.iter().flat_map(|placed| placed.slot.replicas.iter().map(|replica| Rid(replica.rid)));
        let progress = inner.progress.borrow_mut().begin(inner.world.now(), rids.collect());
        let (mut written, mut stopped) = (Vec::new(), false);
        for PlacedKey { index, slot } in placed {
            if stopped {
                written.push(Err(put::Unwritten::interrupted(true)));
                continue;
            }
            progress.begin_write();
            let write = |replica| self.store.write_replica(replica, &self.items[*index], origin, self.options.pace);
            let outcome = write_key(&slot.replicas, write).await;
            progress.end_write();
            stopped = matches!(&outcome, Err(unwritten) if matches!(unwritten.error.cause(), Cause::Interrupted));
            written.push(outcome);
        }
        // A copy within this host does not look up meanwhile.
        let interrupted = stopped || self.store.is_interrupted();
        inner.progress.borrow_mut().end(&progress);
        (written, interrupted)
    }

    async fn end(&self, origin: &ReservationOrigin, ended: Vec<Ended>) -> Result<Option<Vec<i32>>, StoreError> {
        self.store.end_put(origin, ended).await
    }

    async fn abort(&self, origin: &ReservationOrigin, rids: Vec<Rid>, settled: bool) {
        self.store.abort(&origin.session, rids, settled).await;
    }

    fn abort_later(&self, origin: &ReservationOrigin, rids: Vec<Rid>, settled: bool) {
        self.store.abort_later(&origin.session, rids, settled);
    }

    async fn pause(&self, time: Duration) {
        self.store.inner.world.sleep(time).await;
    }

    fn confused(&self) -> StoreError {
        unreachable!("masters of this world answer what they are asked")
    }
}

impl Store {
    async fn write_replica(
        &self,
        replica: &Replica,
        item: &Item,
        origin: &ReservationOrigin,
        pace: u64,
    ) -> Result<u32, put::Unwritten> {
        let words: Vec<u64> = (0..item.granules).map(|index| word(item.value, index)).collect();
        let address = self.find_segment(origin.numbering, replica.extents[0].segment);
        self.write_words_at(replica, address, item, (0, &words), origin, pace).await
    }

    /// Writes words of an object, from its `first` one on, to a replica whose segment was met there, if it was.
    pub(crate) async fn write_words_at(
        &self,
        replica: &Replica,
        address: Option<Address>,
        item: &Item,
        (first, words): (u64, &[u64]),
        origin: &ReservationOrigin,
        pace: u64,
    ) -> Result<u32, put::Unwritten> {
        let inner = &self.inner;
        let unwritten = |settled| put::Unwritten {
            error: Cause::Transfer("not written".into()).into(),
            final_word: false,
            passing: false,
            settled,
        };
        let closed = || put::Unwritten { error: Cause::Closed.into(), final_word: true, ..unwritten(true) };
        let no_link = || put::Unwritten { passing: true, ..unwritten(true) };
        let [extent] = &replica.extents[..] else { unreachable!("an extent each") };
        let address = address.ok_or_else(|| unwritten(true))?;
        let by = (origin.session.secret, Rid(replica.rid));
        inner.network.ledger.note_write_begins(by, (extent.segment, address.uuid), &item.key, item.value);
        inner.world.stall().await;
        let link = self.link_to_write(origin.session.id, &address).await;
        let link = link.ok_or_else(|| if inner.links.are_closed() { closed() } else { no_link() })?;
        let piece = Piece { rid: Rid(replica.rid), offset: extent.offset + first * GRANULE, words, pace };
        inner.writes.set(inner.writes.get() + 1);
        let written = self.write(&link, piece).await;
        inner.writes.set(inner.writes.get() - 1);
        written.map_err(|Unwritten { settled, interrupted }| match interrupted {
            true => put::Unwritten::interrupted(settled),
            false => unwritten(settled),
        })?;
        Ok(checksum(words.iter().copied()))
    }

    async fn end_put(&self, origin: &ReservationOrigin, ended: Vec<Ended>) -> Result<Option<Vec<i32>>, StoreError> {
        let body = request::Body::PutEnd(PutEnd { ended });
        let asked = self.finish_in(&origin.session, body, LOOKUP_TIMEOUT * 2).await;
        Ok(match asked.map_err(|error| error_of(&error))?.map(|reply| reply.body) {
            None => None,
            Some(reply::Body::PutEnd(reply)) => Some(reply.outcomes),
            Some(_) => unreachable!("a put was ended"),
        })
    }

    async fn abort(&self, session: &Session, rids: Vec<Rid>, settled: bool) {
        if settled {
            rids.iter().for_each(|rid| self.inner.network.ledger.note_writer_done(session.secret, *rid));
        }
        let body = request::Body::Abort(Abort { rids: rids.iter().map(|rid| rid.0).collect(), writer_done: settled });
        if self.finish_in(session, body, LOOKUP_TIMEOUT).await.is_err() {
            self.abort_later(session, rids, settled);
        }
    }
}
