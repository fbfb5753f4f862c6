//! The lanes to one segment over every network that its owner has.
//!
//! A small request goes over one address. A large one is cut into chunks, which lanes over all addresses that answer
//! draw from one queue. What a failed lane did not read, another one reads. A write ends with the first lane that fails
//! with a part of it: only the owner can prove that nothing of it lands any more (docs/safety.md, rule 7), and the
//! outcome says so, of all lanes together. The owner's fences end lanes of any address.

mod chunks;

use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use mooncake_memory::{Destination, Source};
use mooncake_net::{Addresses, LEFT_BEHIND, LocalNetworks, ONE_ADDRESS_BYTES_MAX, Spread};
use mooncake_os::{Deadline, Permit, Permits, thread};
use parking_lot::Mutex;

use super::idle_lanes::IdleLanes;
use super::options::{LinkOptions, SegmentAddress};
use super::pool::LanePool;
use super::tcp_lane::{Lane, Outcome, Span};
use crate::error::TransferError;
use crate::protocol::frames::Hello;
use chunks::{Cut, Drawing, Sums};

/// Most threads of a store at a time that large requests have beside their callers' own.
pub(super) const THREADS_MAX: usize = 16;

/// How a lane goes over one address.
#[derive(Debug)]
pub(super) struct Networks {
    segment: Arc<str>,
    /// Those of an address each; or one with all addresses, tried in order.
    pools: Vec<LanePool>,
    addresses: Mutex<Addresses>,
    threads: Arc<Permits>,
}

impl Networks {
    pub fn new(
        address: &SegmentAddress,
        options: &LinkOptions,
        hello: &Hello,
        all_idle: &Arc<IdleLanes>,
        threads: Arc<Permits>,
    ) -> Result<Networks, String> {
        let pools = if address.tcp.len() > 1 {
            let own = &options.tcp_addresses;
            let near = if own.is_empty() { LocalNetworks::default() } else { LocalNetworks::now() };
            let pool = |(nth, tcp): (usize, &String)| {
                let one = SegmentAddress { tcp: vec![tcp.clone()], ..address.clone() };
                let pool = LanePool::new(&one, options, *hello, all_idle.clone())?;
                let at: Option<SocketAddr> = tcp.parse().ok();
                Ok::<_, String>(pool.from(at.and_then(|at| near.local_end(own, nth, at.ip()))))
            };
            address.tcp.iter().take(mooncake_net::ADDRESSES_MAX).enumerate().map(pool).collect::<Result<_, _>>()?
        } else {
            vec![LanePool::new(address, options, *hello, all_idle.clone())?]
        };
        let addresses = Mutex::new(Addresses::new(pools.len(), options.tcp_address_pause));
        Ok(Networks { segment: address.display_name(), pools, addresses, threads })
    }

    /// Opens a lane to one of the addresses, so that the path is known to work.
    pub fn try_connect(&self, deadline: &Deadline<'_>) -> Result<SocketAddr, TransferError> {
        let mut last: Option<TransferError> = None;
        for (nth, pool) in self.pools.iter().enumerate() {
            match pool.try_connect(deadline) {
                Ok(at) => return Ok(at),
                Err(TransferError::Interrupted) => return Err(TransferError::Interrupted),
                Err(error) => {
                    self.failed(nth, &error);
                    // Of an owner that is there, or may be in a moment, whatever its other addresses are like.
                    if last.as_ref().is_none_or(|last| !last.is_passing()) {
                        last = Some(error);
                    }
                }
            }
        }
        Err(last.expect("one address at least"))
    }

    /// Runs one request on a lane over one address; over the next one if nothing of it was sent, or it `repeats`.
    /// `settled` of the outcome is true if no lane could be had.
    pub fn with_lane<T>(
        &self,
        bytes: u64,
        repeats: bool,
        deadline: &Deadline<'_>,
        mut request: impl FnMut(&mut Lane, &Deadline<'_>) -> Outcome<T>,
    ) -> Outcome<T> {
        if let [only] = &self.pools[..] {
            return only.with_lane(deadline, |lane| request(lane, deadline));
        }
        let order = self.addresses.lock().in_order(Instant::now());
        let last = order.len() - 1;
        for (turn, nth) in order.into_iter().enumerate() {
            self.addresses.lock().begin(nth, bytes);
            // What is repeated leaves time for the addresses behind this one.
            let turns = if repeats { (last - turn + 1) as u32 } else { 1 };
            let in_turn = deadline.within(deadline.left() / turns);
            let outcome = self.pools[nth].with_lane(&in_turn, |lane| request(lane, &in_turn));
            self.addresses.lock().end(nth, bytes);
            match &outcome.result {
                Ok(_) => self.answered(nth),
                Err(error) if is_of_address(error) => {
                    self.failed(nth, error);
                    if turn < last && (outcome.settled || repeats) && !deadline.has_passed() {
                        continue;
                    }
                }
                Err(_) => {}
            }
            return outcome;
        }
        unreachable!("the last address ends it")
    }

    /// Reads into the pieces. Gives the checksum of what came if asked for.
    pub fn read(
        &self,
        span: Span,
        pieces: &mut [Destination<'_>],
        checksum: bool,
        deadline: &Deadline<'_>,
    ) -> Result<u32, TransferError> {
        let Some((lanes, _threads)) = self.lanes_for(span.len) else {
            return self
                .with_lane(span.len, true, deadline, |lane, deadline| lane.read(span, pieces, checksum, deadline))
                .result;
        };
        let cut = Cut::new(span, pieces.iter_mut().map(Destination::reborrow), Destination::len, Destination::split_at);
        let (sums, cut) = (Sums::new(cut.len()), cut.shared());
        let whole = Whole::new(span, cut.len(), lanes, true, deadline);
        let outcome = self.carry(&whole, |lane, over, deadline| {
            over.read_drawn(&Drawing { spread: &whole.spread, lane, cut: &cut, sums: &sums }, checksum, deadline)
        });
        outcome.result.map(|()| sums.of_all(&cut))
    }

    /// Writes the pieces; gives their checksum once they are in the owner's memory.
    pub fn write(&self, span: Span, pieces: &[Source<'_>], deadline: &Deadline<'_>) -> Outcome<u32> {
        let Some((lanes, _threads)) = self.lanes_for(span.len) else {
            return self.with_lane(span.len, false, deadline, |lane, deadline| lane.write(span, pieces, deadline));
        };
        let cut = Cut::new(span, pieces.iter().copied(), Source::len, Source::split_at);
        let sums = Sums::new(cut.len());
        let whole = Whole::new(span, cut.len(), lanes, false, deadline);
        let outcome = self.carry(&whole, |lane, over, deadline| {
            over.write_drawn(&Drawing { spread: &whole.spread, lane, cut: &cut, sums: &sums }, deadline)
        });
        Outcome::new(outcome.result.map(|()| sums.of_all(&cut)), outcome.reusable, outcome.settled)
    }

    /// The addresses that a request of so many bytes goes over, and threads for all of them but the first; none if it
    /// goes over one address.
    fn lanes_for(&self, bytes: u64) -> Option<(Vec<usize>, Permit<&Permits>)> {
        if self.pools.len() == 1 || bytes <= ONE_ADDRESS_BYTES_MAX {
            return None;
        }
        let mut lanes = self.addresses.lock().in_use(Instant::now());
        let threads = Permit::up_to(&*self.threads, lanes.len() - 1);
        lanes.truncate(threads.count() + 1);
        (lanes.len() > 1).then_some((lanes, threads))
    }

    /// Has lanes carry what they draw, each in a thread, the first one in this thread.
    fn carry(
        &self,
        whole: &Whole<'_>,
        carry: impl Fn(usize, &mut Lane, &Deadline<'_>) -> Outcome<()> + Sync,
    ) -> Outcome<()> {
        let carry = &carry;
        let (first, others) = whole.lanes.split_first().expect("two at least");
        let ended = std::thread::scope(|scope| {
            let mut started = Vec::new();
            for (lane, nth) in (1..).zip(others) {
                let builder = std::thread::Builder::new().name("mooncake-stripe".into());
                match thread::start_scoped(scope, builder, move || self.run(whole, lane, *nth, carry)) {
                    Ok(thread) => started.push(thread),
                    // The other lanes carry its chunks.
                    Err(_) => whole.spread.failed(lane),
                }
            }
            let mut ended = vec![self.run(whole, 0, *first, carry)];
            // A panic breaks an invariant of this crate, here as in the caller's thread.
            let joined = started.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            ended.extend(joined);
            ended
        });
        let settled = ended.iter().all(|outcome| outcome.settled);
        if whole.spread.is_done() {
            return Outcome { result: Ok(()), reusable: true, settled: true };
        }
        // What ended the request counts before what ended one lane of it.
        let mut errors: Vec<TransferError> = ended.into_iter().filter_map(|outcome| outcome.result.err()).collect();
        errors.sort_by_key(is_of_address);
        let error = errors.into_iter().next().unwrap_or(TransferError::Interrupted);
        Outcome { result: Err(error), reusable: false, settled }
    }

    /// Carries chunks over one address until there are none.
    fn run(
        &self,
        whole: &Whole<'_>,
        lane: usize,
        nth: usize,
        carry: &impl Fn(usize, &mut Lane, &Deadline<'_>) -> Outcome<()>,
    ) -> Outcome<()> {
        let spread = &whole.spread;
        let (is_behind, is_connected) = (AtomicBool::new(false), AtomicBool::new(false));
        let gives_up = || {
            let behind = spread.is_left_behind(lane);
            is_behind.fetch_or(behind, Ordering::Relaxed);
            // A lane that carries a write says what became of it, however the others ended.
            let is_over = spread.is_over() && (whole.repeats || !is_connected.load(Ordering::Relaxed));
            behind || is_over || whole.deadline.is_interrupted()
        };
        let deadline = &Deadline { interrupted: &gives_up, ..*whole.deadline };
        self.addresses.lock().begin(nth, whole.share);
        let mut outcome = self.pools[nth].with_lane(deadline, |over| {
            is_connected.store(true, Ordering::Relaxed);
            carry(lane, over, deadline)
        });
        self.addresses.lock().end(nth, whole.share);
        let was_connected = is_connected.load(Ordering::Relaxed);
        if matches!(outcome.result, Err(TransferError::Interrupted)) {
            let was_unanswered = !was_connected && spread.is_done() && self.pools[nth].is_empty();
            if is_behind.load(Ordering::Relaxed) || was_unanswered {
                // It would keep the next request, too.
                let what = "an address of several stood still";
                let error = TransferError::Timeout { segment: self.segment.to_string(), what, waited: LEFT_BEHIND };
                outcome.result = Err(error);
            } else if spread.is_over() {
                // Another lane knows why.
                outcome.result = Ok(());
            }
        }
        match &outcome.result {
            Ok(()) if was_connected => self.answered(nth),
            Ok(()) => {}
            Err(error) if is_of_address(error) && !whole.deadline.has_passed() => {
                self.failed(nth, error);
                spread.failed(lane);
            }
            Err(_) => {
                spread.failed(lane);
                spread.stop();
            }
        }
        outcome
    }

    fn answered(&self, nth: usize) {
        if self.addresses.lock().answered(nth) {
            let address = self.pools[nth].first();
            tracing::info!(segment = %self.segment, %address, "an address is used again");
        }
    }

    fn failed(&self, nth: usize, error: &TransferError) {
        if self.pools.len() > 1 && self.addresses.lock().failed(nth, Instant::now()) {
            let address = self.pools[nth].first();
            tracing::info!(segment = %self.segment, %address, %error, "an address is left out");
        }
    }

    /// Whether no owner takes lanes at any of the addresses any more, and none is left.
    pub fn is_refused(&self) -> bool {
        self.pools.iter().all(LanePool::is_refused)
    }

    /// As reports say it: none where there is one address.
    pub fn summary(&self) -> Option<String> {
        let (used, all) = (self.addresses.lock().in_use(Instant::now()).len(), self.pools.len());
        match all {
            1 => None,
            _ if used == all => Some(format!("over {all} addresses")),
            _ => Some(format!("over {used} of {all} addresses, the others failed a moment ago")),
        }
    }

    /// Closes the lanes that no call has used for a while.
    pub fn close_idle(&self) {
        self.pools.iter().for_each(LanePool::close_idle);
    }

    pub fn close(&self) {
        self.pools.iter().for_each(LanePool::close);
    }
}

/// One request that several lanes carry.
struct Whole<'a> {
    spread: Spread,
    /// The addresses that the lanes go over.
    lanes: Vec<usize>,
    /// Bytes that a lane carries, as far as can be told before.
    share: u64,
    /// What a lane did not get done, another one may.
    repeats: bool,
    deadline: &'a Deadline<'a>,
}

impl<'a> Whole<'a> {
    fn new(span: Span, chunks: usize, lanes: Vec<usize>, repeats: bool, deadline: &'a Deadline<'a>) -> Whole<'a> {
        let (spread, share) = (Spread::new(chunks, lanes.len(), repeats), span.len / lanes.len() as u64);
        Whole { spread, lanes, share, repeats, deadline }
    }
}

/// An error that says something of the address, and nothing of what was asked for there.
fn is_of_address(error: &TransferError) -> bool {
    let is_lost = matches!(error, TransferError::Broken { .. } | TransferError::Timeout { .. });
    is_lost && !error.is_short_of_descriptors()
}
