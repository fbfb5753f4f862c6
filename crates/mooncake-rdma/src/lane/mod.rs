//! Lanes: the queue pairs of one rail, with their queue of completions, used by one call at a time.
//!
//! The calling thread posts and polls. A call returns when the lane's queue pairs can touch none of its memory: all its
//! requests have completed; or it was *drained*, which ends the lane. A write that was drained is *unsettled* in any
//! case: its packets may still land until the peer has destroyed its end.

pub mod carry;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mooncake_memory::PrivatePages;
use mooncake_mutant::mutant;
use mooncake_net::PollHistory;
use mooncake_os::{Deadline, random_bytes};
use mooncake_verbs::{
    Access, Chain, CompletionQueue, Completions, Local, Operation, Piece, Region, Remote, Request, Status, VerbsError,
    keep_from_children,
};
use rustix::io::Errno;

use self::carry::{CarryError, Reason};
use crate::nic::{CountedQueuePair, Nic, PeerEnd};
use crate::options::RdmaOptions;

/// For how long a drain waits until the cards have flushed what was posted.
const FLUSH_TIME: Duration = Duration::from_millis(100);

/// And then, until its queue pairs are destroyed.
const DESTROY_TIME: Duration = Duration::from_secs(1);

/// Bytes that one queue pair has under way at most: what other lanes of a call have to wait for, if it is slow.
const AHEAD_BYTES_MAX: u64 = 4 << 20;

/// Requests that one queue pair is given before the next one has its turn.
const IN_A_ROW_MAX: usize = 4;

/// Completions that are taken at a time.
const POLLED_MAX: usize = 32;

/// What a lane is asked to do: bytes between a piece of registered memory of this side and the peer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// In which direction.
    pub operation: Operation,
    /// This side's end, and how many bytes.
    pub local: Piece,
    /// The peer's end.
    pub remote: Remote,
}

/// The queue pairs of one rail, from one call to the next.
pub struct Lane {
    nic: Arc<Nic>,
    pairs: Vec<Pair>,
    queue: Arc<CompletionQueue>,
    /// Where the READs that follow writes put what they read. There until the lane goes.
    scratch: Option<Region>,
    completions: Completions,
    chain: Chain,
    pub(crate) history: PollHistory,
    is_spent: bool,
    /// When a request completed last, or a call began.
    moved: Instant,
}

/// What was posted of the work that there was.
pub(crate) struct Filled {
    pub any: bool,
    pub is_all: bool,
}

/// One queue pair, and how far it is.
struct Pair {
    /// None once it is being destroyed.
    queue_pair: Option<Arc<CountedQueuePair>>,
    number: u32,
    psn: u32,
    /// Requests.
    posted: u64,
    done: u64,
    /// Of signalled requests: how many requests there were up to it, and bytes since the one before.
    marks: VecDeque<(u64, u64)>,
    /// Bytes of requests that have not completed.
    ahead: u64,
    /// Bytes since the last mark.
    unmarked: u64,
    /// The last byte that was written by the present call.
    last_written: Option<Remote>,
    /// It is being read.
    is_proven: bool,
}

impl Lane {
    /// With new queue pairs, which are not connected.
    pub fn new(nic: &Arc<Nic>) -> Result<Lane, VerbsError> {
        Lane::with_queue_pairs(nic, nic.options().queue_pairs)
    }

    /// The same with so many of them, whose first packets have numbers by chance: what is still on its way to queue
    /// pairs of the same numbers, which are gone, is none of theirs.
    pub fn with_queue_pairs(nic: &Arc<Nic>, count: usize) -> Result<Lane, VerbsError> {
        Lane::make(nic, count, || u32::from_le_bytes(random_bytes().unwrap_or_default()) & 0x00ff_ffff)
    }

    /// The same for a peer that takes the first packet's number for 0.
    pub fn from_zero(nic: &Arc<Nic>, count: usize) -> Result<Lane, VerbsError> {
        Lane::make(nic, count, || 0)
    }

    fn make(nic: &Arc<Nic>, count: usize, psn: impl Fn() -> u32) -> Result<Lane, VerbsError> {
        let count = count.clamp(1, 64);
        let RdmaOptions { send_depth, .. } = *nic.options();
        let queue = CompletionQueue::new(nic.context(), send_depth.saturating_mul(count as u32))?;
        let refused = |error: std::io::Error| VerbsError::Refused {
            verb: "mmap",
            device: nic.name().to_owned(),
            errno: error.raw_os_error().unwrap_or(12),
        };
        let pages = PrivatePages::parts(1, 4_096).map_err(refused)?.pop().expect("one");
        let scratch = Region::register_pages(nic.domain(), pages, Access { local_write: true, ..Access::default() })?;
        let pairs = (0..count).map(|_| Pair::new(nic, &queue, psn())).collect::<Result<Vec<Pair>, VerbsError>>()?;
        keep_from_children();
        Ok(Lane {
            nic: nic.clone(),
            pairs,
            queue,
            scratch: Some(scratch),
            completions: Completions::with_room(POLLED_MAX),
            chain: Chain::new(),
            history: PollHistory::new(),
            is_spent: false,
            moved: Instant::now(),
        })
    }

    /// Which card it is of.
    pub fn nic(&self) -> &Arc<Nic> {
        &self.nic
    }

    /// The numbers of its queue pairs, and of the first packets that they send.
    pub fn ends(&self) -> Vec<(u32, u32)> {
        self.pairs.iter().map(|pair| (pair.number, pair.psn)).collect()
    }

    /// Connects each queue pair to one of the peer's.
    pub fn connect(&self, peer: &[PeerEnd]) -> Result<(), VerbsError> {
        assert_eq!(peer.len(), self.pairs.len(), "as many ends on either side");
        for (pair, end) in self.pairs.iter().zip(peer) {
            pair.queue_pair().connect(&self.nic.connection(end, pair.psn))?;
        }
        Ok(())
    }

    /// Writes nothing by each queue pair: what answers is a rail that works.
    pub fn prove(&mut self, deadline: &Deadline<'_>) -> Result<(), CarryError> {
        carry::prove(self, deadline)
    }

    pub(crate) fn push_nothing(&mut self) -> Result<(), Reason> {
        for nth in 0..self.pairs.len() {
            let nothing = Request {
                id: 0,
                operation: Operation::Write,
                local: Local::Pieces(&[]),
                remote: Remote { addr: 0, key: 0 },
                fenced: false,
                signaled: true,
            };
            self.push(nth, nothing, 0);
            self.post(nth)?;
        }
        Ok(())
    }

    /// Destroys its queue pairs, on this thread: behind this nothing of its peer lands. It may take as long as the card
    /// does. After an error it may be called again.
    pub fn destroy(&mut self) -> Result<(), VerbsError> {
        self.is_spent = true;
        for pair in &mut self.pairs {
            let Some(queue_pair) = pair.queue_pair.take() else { continue };
            let queue_pair = Arc::try_unwrap(queue_pair).map_err(|used| {
                pair.queue_pair = Some(used);
                let device = self.nic.name().to_owned();
                VerbsError::Refused { verb: "ibv_destroy_qp", device, errno: Errno::BUSY.raw_os_error() }
            })?;
            if let Err((left, error)) = queue_pair.destroy() {
                pair.queue_pair = Some(Arc::new(left));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Whether it may be used by another call.
    pub fn is_usable(&self) -> bool {
        // One whose call unwound has requests under way.
        !self.is_spent && !self.nic.is_down() && !self.is_busy() && self.chain.is_empty()
    }

    /// Carries work out, in this thread: all of it, or an error. See [`carry`](carry::carry), for several lanes.
    pub fn carry(
        &mut self,
        work: &mut dyn Iterator<Item = Work>,
        deadline: &Deadline<'_>,
        stall: Duration,
    ) -> Result<(), CarryError> {
        carry::carry(&mut [self], &mut |_| work.next(), deadline, stall)
    }

    /// A call begins.
    pub(crate) fn begin(&mut self) {
        self.moved = Instant::now();
        assert!(!self.is_spent, "a lane that was drained is never used again");
        for pair in &mut self.pairs {
            pair.last_written = None;
        }
    }

    /// Posts work as far as there is room: whether any, and whether there is no more.
    pub(crate) fn fill(&mut self, next: &mut dyn FnMut() -> Option<Work>) -> Result<Filled, Reason> {
        let mut filled = Filled { any: false, is_all: false };
        for nth in 0..self.pairs.len() {
            for _ in 0..IN_A_ROW_MAX {
                if filled.is_all || !self.pairs[nth].has_room() {
                    break;
                }
                match next() {
                    Some(work) => {
                        self.push_work(nth, &work);
                        filled.any = true;
                    }
                    None => filled.is_all = true,
                }
            }
            self.post(nth)?;
        }
        Ok(filled)
    }

    /// Behind the last write of each queue pair one READ of the last byte that it wrote, as far as there is room;
    /// whether there was for all.
    pub(crate) fn read_last_bytes(&mut self) -> Result<bool, Reason> {
        if mutant!(WritesEndWithTheirCompletion) {
            return Ok(true);
        }
        let mut is_all = true;
        for nth in 0..self.pairs.len() {
            let Some(remote) = self.pairs[nth].last_written.filter(|_| !self.pairs[nth].is_proven) else { continue };
            if self.pairs[nth].is_full() {
                is_all = false;
                continue;
            }
            let place = self.scratch.as_ref().and_then(|page| page.piece(8 * (nth % 512), 1)).expect("a page");
            let local = Local::Pieces(std::slice::from_ref(&place));
            let read = Request { id: 0, operation: Operation::Read, local, remote, fenced: false, signaled: true };
            self.push(nth, read, 0);
            self.pairs[nth].is_proven = true;
            self.post(nth)?;
        }
        Ok(is_all)
    }

    /// Whether requests have not completed.
    pub(crate) fn is_busy(&self) -> bool {
        self.pairs.iter().any(|pair| pair.done < pair.posted)
    }

    /// Whether it has written in the present call.
    pub(crate) fn has_written(&self) -> bool {
        self.pairs.iter().any(|pair| pair.last_written.is_some())
    }

    /// When a request completed last.
    pub(crate) fn moved(&self) -> Instant {
        self.moved
    }

    pub(crate) fn queue(&self) -> &Arc<CompletionQueue> {
        &self.queue
    }

    fn push_work(&mut self, nth: usize, work: &Work) {
        let bytes = u64::from(work.local.bytes());
        let pair = &mut self.pairs[nth];
        if work.operation == Operation::Write && bytes > 0 {
            pair.is_proven = false;
            pair.last_written = Some(Remote { addr: work.remote.addr + bytes - 1, key: work.remote.key });
        }
        // So that room comes back in good time: a queue pair's requests complete in their order.
        let is_mark = pair.wants_mark(bytes);
        let request = Request {
            id: 0,
            operation: work.operation,
            local: Local::Pieces(std::slice::from_ref(&work.local)),
            remote: work.remote,
            fenced: false,
            signaled: is_mark,
        };
        self.push(nth, request, bytes);
    }

    fn push(&mut self, nth: usize, request: Request<'_>, bytes: u64) {
        let pair = &mut self.pairs[nth];
        pair.posted += 1;
        pair.ahead += bytes;
        pair.unmarked += bytes;
        if request.signaled {
            pair.marks.push_back((pair.posted, std::mem::take(&mut pair.unmarked)));
        }
        let id = (nth as u64) << PAIR_SHIFT | (pair.posted & SEQUENCE_MASK);
        self.chain.push(Request { id, ..request });
    }

    /// Posts what was pushed for a queue pair. The last of it is signalled.
    fn post(&mut self, nth: usize) -> Result<(), Reason> {
        if self.chain.is_empty() {
            return Ok(());
        }
        let pair = &mut self.pairs[nth];
        if self.chain.signal_last() {
            pair.marks.push_back((pair.posted, std::mem::take(&mut pair.unmarked)));
        }
        let count = self.chain.len() as u64;
        match pair.queue_pair().post(&mut self.chain) {
            Ok(()) => Ok(()),
            Err(error) => {
                // What was not taken never completes.
                pair.posted -= count - error.posted as u64;
                let posted = pair.posted;
                pair.marks.retain(|(at, _)| *at <= posted);
                Err(Reason::Verbs(error.source))
            }
        }
    }

    /// Takes what has completed; whether anything has.
    pub(crate) fn take_completions(&mut self) -> Result<bool, Reason> {
        let done = self.queue.poll(&mut self.completions)?;
        let (mut moved, mut failed) = (false, None);
        for completion in done {
            let (nth, sequence) = (completion.id() >> PAIR_SHIFT, completion.id() & SEQUENCE_MASK);
            let Some(pair) = self.pairs.get_mut(nth as usize) else { continue };
            // A card in trouble may tell what was told before, or of requests that nobody made.
            if pair.number != completion.queue_pair() || !pair.complete(sequence) {
                continue;
            }
            moved = true;
            // The others are flushed as a consequence.
            let is_cause =
                completion.status() != Status::SUCCESS && failed.is_none_or(|status: Status| status == Status::FLUSHED);
            if is_cause {
                failed = Some(completion.status());
            }
        }
        if moved {
            self.moved = Instant::now();
        }
        match failed {
            Some(status) if !self.is_spent => Err(Reason::Failed(status)),
            _ => Ok(moved),
        }
    }

    /// Has the card stop what is under way, on its own thread.
    fn stop(&mut self) {
        self.is_spent = true;
        self.chain.clear();
        let busy = self.pairs.iter().filter(|pair| pair.done < pair.posted);
        let busy: Vec<Arc<CountedQueuePair>> = busy.filter_map(|pair| pair.queue_pair.clone()).collect();
        if !busy.is_empty() {
            let _ = self.nic.give(move || {
                // What cannot be stopped is destroyed next.
                let _ = busy.iter().try_for_each(|pair| pair.stop());
            });
        }
    }

    /// Has the card destroy its queue pairs, on its own thread, and tells when it has.
    fn destroy_soon(&mut self) -> Gone {
        let all: Vec<Arc<CountedQueuePair>> = self.pairs.iter_mut().filter_map(|pair| pair.queue_pair.take()).collect();
        let gone = Gone::default();
        let told = gone.clone();
        let _ = self.nic.give(move || {
            let mut is_gone = true;
            for pair in all {
                // Another job may have it, which hangs.
                is_gone &= Arc::into_inner(pair).is_some_and(|pair| pair.destroy().is_ok());
            }
            told.0.store(is_gone, Ordering::SeqCst);
        });
        gone
    }
}

/// Whether queue pairs are gone.
#[derive(Debug, Clone, Default)]
pub struct Gone(Arc<AtomicBool>);

impl Gone {
    /// They touch no memory any more.
    pub fn is_gone(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Ends lanes, all at the same time: on return their queue pairs touch no memory of this side any more, but for those
/// whose cards do not stop.
fn drain(lanes: &mut [&mut Lane]) -> Vec<Gone> {
    if mutant!(DrainsStopNothing) {
        lanes.iter_mut().for_each(|lane| lane.is_spent = true);
        return Vec::new();
    }
    let began = Instant::now();
    lanes.iter_mut().for_each(|lane| lane.stop());
    while lanes.iter().any(|lane| lane.is_busy()) && began.elapsed() < FLUSH_TIME {
        let mut any = false;
        for lane in lanes.iter_mut() {
            any |= lane.take_completions().unwrap_or(false);
        }
        if !any {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
    // What is flushed needs not be waited for.
    let ended = lanes.iter_mut().map(|lane| (lane.is_busy(), lane.destroy_soon()));
    let mut waited_for: Vec<Gone> =
        ended.collect::<Vec<_>>().into_iter().filter_map(|(busy, gone)| busy.then_some(gone)).collect();
    let until = Instant::now() + DESTROY_TIME;
    loop {
        waited_for.retain(|gone| !gone.is_gone());
        if waited_for.is_empty() || Instant::now() >= until {
            return waited_for;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Where in a request's number its queue pair stands.
const PAIR_SHIFT: u32 = 48;
const SEQUENCE_MASK: u64 = (1 << PAIR_SHIFT) - 1;

impl Pair {
    fn new(nic: &Arc<Nic>, queue: &Arc<CompletionQueue>, psn: u32) -> Result<Pair, VerbsError> {
        let queue_pair = nic.queue_pair(queue)?;
        Ok(Pair {
            number: queue_pair.number(),
            queue_pair: Some(Arc::new(queue_pair)),
            psn,
            posted: 0,
            done: 0,
            marks: VecDeque::new(),
            ahead: 0,
            unmarked: 0,
            last_written: None,
            is_proven: false,
        })
    }

    fn queue_pair(&self) -> &CountedQueuePair {
        self.queue_pair.as_ref().expect("there until the lane is drained")
    }

    fn depth(&self) -> u64 {
        self.queue_pair().depth().into()
    }

    /// One place is kept for the READ behind writes.
    fn has_room(&self) -> bool {
        self.posted - self.done + 1 < self.depth() && self.ahead < AHEAD_BYTES_MAX
    }

    fn is_full(&self) -> bool {
        self.posted - self.done >= self.depth()
    }

    fn wants_mark(&self, bytes: u64) -> bool {
        let since = self.posted - self.marks.back().map_or(self.done, |(at, _)| *at);
        self.unmarked + bytes >= AHEAD_BYTES_MAX / 4 || since + 1 >= self.depth() / 4
    }

    /// Notes that the request of that number has ended, and with it all before it; false if that is no news.
    fn complete(&mut self, sequence: u64) -> bool {
        if sequence <= self.done || sequence > self.posted {
            return false;
        }
        self.done = sequence;
        while self.marks.front().is_some_and(|(at, _)| *at <= sequence) {
            let (_, bytes) = self.marks.pop_front().expect("looked at");
            self.ahead -= bytes.min(self.ahead);
        }
        true
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if mooncake_os::forked() {
            return;
        }
        // Nothing is under way but where a call unwinds.
        if self.pairs.iter().any(|pair| pair.queue_pair.is_some()) && !drain(&mut [self]).is_empty() {
            tracing::error!(nic = self.nic.name(), "a card does not stop; memory of a call that panicked may change");
        }
        // Behind the queue pairs, and by the thread that may hang.
        let (scratch, queue) = (self.scratch.take(), self.queue.clone());
        let _ = self.nic.give(move || drop((scratch, queue)));
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<u32> = self.pairs.iter().map(|pair| pair.number).collect();
        f.debug_struct("Lane").field("nic", &self.nic.name()).field("queue_pairs", &numbers).finish()
    }
}
