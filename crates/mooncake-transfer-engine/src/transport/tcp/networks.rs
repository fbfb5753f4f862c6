//! A peer in several networks: its addresses, and the connections to each.
//!
//! A small request goes over one address, and over another one if that fails. A large one is cut into chunks, which
//! connections over all addresses draw from one queue. Both repeat what a failed connection did not get done, writes
//! too: the target takes nothing more of an abandoned connection before the call is a success.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mooncake_net::{Addresses, CHUNK_BYTES, LEFT_BEHIND, Pool, Spread};
use mooncake_os::{Deadline, WaitError, thread};
use parking_lot::Mutex;

use super::connection::{Address, Connector, Requests, TcpConnection};
use crate::error::EngineError;
use crate::request::Request;
use crate::transport::context::Context;

/// A peer stands still for so long at one address, to a small request, before the next address is tried.
const STILL_TIME_MAX: Duration = Duration::from_secs(2);

/// One address, and the connections there.
pub(super) struct Network {
    pub address: Address,
    pub connections: Pool<TcpConnection>,
}

impl Network {
    /// Carries requests out over one connection; gives up if the peer stands still for so long.
    fn transfer(
        &self,
        context: &Context,
        requests: &[Request],
        timeout: Duration,
        deadline: &Deadline<'_>,
    ) -> Result<(), EngineError> {
        let by = Connector { context, address: &self.address, timeout };
        let stall_timeout = context.options.stall_timeout.min(timeout);
        self.connections
            .with(&by, deadline, |connection| connection.transfer(context, requests, stall_timeout, deadline))
    }
}

/// All of one peer: one, or several.
pub(super) struct Networks {
    all: Vec<Network>,
    addresses: Mutex<Addresses>,
}

impl Networks {
    pub fn new(all: Vec<Network>, pause: Duration) -> Networks {
        let addresses = Mutex::new(Addresses::new(all.len(), pause));
        Networks { all, addresses }
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Network> {
        self.all.iter()
    }

    /// Those that a large request goes over.
    pub fn in_use(&self) -> Vec<usize> {
        self.addresses.lock().in_use(Instant::now())
    }

    /// Writes were abandoned, and the peer has not confirmed that nothing lands of them.
    pub fn has_abandoned(&self) -> bool {
        // All have the list in common.
        !self.all[0].address.abandoned().is_empty()
    }

    /// Carries requests out over one address, and over the next one if it fails.
    pub fn transfer_by_one(
        &self,
        context: &Context,
        requests: &[Request],
        deadline: &Deadline<'_>,
    ) -> Result<(), EngineError> {
        if let [only] = &self.all[..] {
            return only.transfer(context, requests, Duration::MAX, deadline);
        }
        let bytes = requests.iter().map(|request| request.local.len() as u64).sum();
        let order = self.addresses.lock().in_order(Instant::now());
        let (last, others) = order.split_last().expect("one at least");
        for nth in others {
            match self.try_one(*nth, bytes, context, requests, STILL_TIME_MAX, deadline) {
                Err(error) if is_of_address(&error) && !deadline.has_passed() => {}
                ended => return ended,
            }
        }
        self.try_one(*last, bytes, context, requests, Duration::MAX, deadline)
    }

    fn try_one(
        &self,
        nth: usize,
        bytes: u64,
        context: &Context,
        requests: &[Request],
        timeout: Duration,
        deadline: &Deadline<'_>,
    ) -> Result<(), EngineError> {
        self.addresses.lock().begin(nth, bytes);
        let ended = self.all[nth].transfer(context, requests, timeout, deadline);
        self.addresses.lock().end(nth, bytes);
        match &ended {
            Ok(()) => self.answered(nth),
            Err(error) if is_of_address(error) => self.failed(nth, error),
            Err(_) => {}
        }
        ended
    }

    fn answered(&self, nth: usize) {
        if self.addresses.lock().answered(nth) {
            let at = &self.all[nth].address;
            tracing::info!(peer = at.peer(), address = %at.first(), "an address of the peer is used again");
        }
    }

    fn failed(&self, nth: usize, error: &EngineError) {
        if self.addresses.lock().failed(nth, Instant::now()) {
            let at = &self.all[nth].address;
            tracing::info!(peer = at.peer(), address = %at.first(), %error, "an address of the peer is left out");
        }
    }

    /// Carries requests of one kind out over several connections, one to each of these addresses, with a thread for
    /// each but the first. They draw chunks from one queue.
    pub fn transfer_spread(
        &self,
        context: &Context,
        requests: &[Request],
        lanes: &[usize],
        deadline: &Deadline<'_>,
    ) -> Result<(), EngineError> {
        let (requests, chunks) = chunks_of(requests);
        let share = requests.iter().map(|request| request.local.len() as u64).sum::<u64>() / lanes.len() as u64;
        let spread = Spread::new(chunks.len(), lanes.len(), true);
        let whole = Whole { networks: self, context, requests, chunks, spread, share, deadline };
        if whole.chunks.is_empty() {
            return Ok(());
        }
        let (first, others) = lanes.split_first().expect("one at least");
        let error = std::thread::scope(|scope| {
            let mut started = Vec::new();
            for (lane, nth) in (1..).zip(others) {
                let builder = std::thread::Builder::new().name("mooncake-stripe".into());
                let whole = &whole;
                match thread::start_scoped(scope, builder, move || whole.run(lane, *nth)) {
                    Ok(thread) => started.push(thread),
                    // The other lanes carry its chunks.
                    Err(_) => whole.spread.failed(lane),
                }
            }
            let mut error = whole.run(0, *first).err();
            for other in started {
                let panicked = || Err(EngineError::Panicked("a stripe's thread panicked".into()));
                let ended = other.join().unwrap_or_else(|_| panicked());
                // What ended the request counts before what ended one lane of it.
                if let Err(other) = ended
                    && error.as_ref().is_none_or(|error| is_of_address(error) && !is_of_address(&other))
                {
                    error = Some(other);
                }
            }
            error
        });
        match error {
            Some(error) if !whole.spread.is_done() => Err(error),
            _ if !whole.spread.is_done() => Err(EngineError::Interrupted),
            // What may still land are the same bytes; after this call they would not be.
            _ if self.has_abandoned() => self.transfer_by_one(context, &[], deadline),
            _ => Ok(()),
        }
    }
}

/// An error that says something of the address, and nothing of what was asked for there.
fn is_of_address(error: &EngineError) -> bool {
    matches!(error, EngineError::Socket { .. } | EngineError::Timeout { .. } | EngineError::Malformed { .. })
}

/// One request that several connections carry.
struct Whole<'a> {
    networks: &'a Networks,
    context: &'a Context,
    requests: Vec<Request>,
    /// Which of the requests are in which chunk.
    chunks: Vec<Range<usize>>,
    spread: Spread,
    /// Bytes that a lane carries, as far as can be told before.
    share: u64,
    deadline: &'a Deadline<'a>,
}

impl Whole<'_> {
    /// Carries chunks over one address until there are none. An error ends this lane alone if it is of the address.
    fn run(&self, lane: usize, nth: usize) -> Result<(), EngineError> {
        self.networks.addresses.lock().begin(nth, self.share);
        let ended = self.carry(lane, nth);
        self.networks.addresses.lock().end(nth, self.share);
        match &ended {
            Ok(()) => {}
            Err(error) if is_of_address(error) && !self.deadline.has_passed() => {
                self.networks.failed(nth, error);
                self.spread.failed(lane);
            }
            Err(_) => {
                self.spread.failed(lane);
                self.spread.stop();
            }
        }
        ended
    }

    fn carry(&self, lane: usize, nth: usize) -> Result<(), EngineError> {
        let (network, spread) = (&self.networks.all[nth], &self.spread);
        let (is_behind, mut is_connected) = (AtomicBool::new(false), false);
        let gives_up = || {
            let behind = spread.is_left_behind(lane);
            is_behind.fetch_or(behind, Ordering::Relaxed);
            behind || spread.is_over() || self.deadline.is_interrupted()
        };
        let deadline = &Deadline { interrupted: &gives_up, ..*self.deadline };
        let by = Connector { context: self.context, address: &network.address, timeout: Duration::MAX };
        let opcode = self.requests[0].opcode;
        let carried = network.connections.with(&by, deadline, |connection| {
            is_connected = true;
            // Of a connection that was lost, and has been replaced.
            spread.give_back(lane);
            let mut drawn = Drawn { whole: self, lane, chunk: 0..0, unanswered: VecDeque::new() };
            loop {
                connection.transfer_drawn(self.context, opcode, &mut drawn, (spread, lane), deadline)?;
                self.networks.answered(nth);
                match spread.wait(lane, deadline) {
                    Ok(Some(chunk)) => drawn.begin(chunk),
                    Ok(None) => return Ok(()),
                    Err(error) => return Err(waiting(&network.address, error)),
                }
            }
        });
        match carried {
            // One that has not connected while others did it all would keep the next request, too.
            Err(EngineError::Interrupted)
                if is_behind.load(Ordering::Relaxed)
                    || (!is_connected && spread.is_done() && network.connections.is_empty()) =>
            {
                let (peer, what) = (network.address.first().to_string(), "moving bytes at one of several addresses");
                Err(EngineError::Timeout { peer, what, waited: LEFT_BEHIND })
            }
            // Another lane knows why, or there is nothing more to do.
            Err(EngineError::Interrupted) if spread.is_over() => Ok(()),
            ended => ended,
        }
    }
}

fn waiting(address: &Address, error: WaitError) -> EngineError {
    EngineError::waiting(address.peer(), "waiting for the other addresses")(error)
}

/// The requests of the chunks that one lane draws.
struct Drawn<'a> {
    whole: &'a Whole<'a>,
    lane: usize,
    /// What is left of the chunk that was drawn last.
    chunk: Range<usize>,
    /// Requests of each chunk that are under way, or not begun.
    unanswered: VecDeque<usize>,
}

impl Drawn<'_> {
    fn begin(&mut self, chunk: usize) {
        self.chunk = self.whole.chunks[chunk].clone();
        self.unanswered.push_back(self.chunk.len());
    }
}

impl Requests for Drawn<'_> {
    fn next(&mut self) -> Option<Request> {
        if self.chunk.is_empty() {
            let chunk = self.whole.spread.take(self.lane)?;
            self.begin(chunk);
        }
        self.chunk.next().map(|nth| self.whole.requests[nth])
    }

    fn done(&mut self) {
        let oldest = self.unanswered.front_mut().expect("a request of it is under way");
        *oldest -= 1;
        if *oldest == 0 {
            self.unanswered.pop_front();
            self.whole.spread.done(self.lane);
        }
    }
}

/// Cuts requests where they are larger than a chunk, and puts those together that are smaller. None is empty.
fn chunks_of(requests: &[Request]) -> (Vec<Request>, Vec<Range<usize>>) {
    let (mut cut, mut chunks, mut room) = (Vec::new(), Vec::<Range<usize>>::new(), 0);
    for request in requests {
        let (mut at, len) = (0, request.local.len() as u64);
        while at < len {
            if room == 0 {
                chunks.push(cut.len()..cut.len());
                room = CHUNK_BYTES;
            }
            let step = room.min(len - at);
            let local = request.local.part(at as usize, step as usize);
            cut.push(Request { local, remote: request.remote + at, ..*request });
            chunks.last_mut().expect("one was begun").end = cut.len();
            (at, room) = (at + step, room - step);
        }
    }
    (cut, chunks)
}

#[cfg(test)]
mod tests {
    use mooncake_memory::leak_shared;

    use super::*;
    use crate::request::Opcode;

    #[test]
    fn chunks_have_all_bytes_once_and_in_order_whatever_the_requests() {
        let lens = [10, 0, 3 * CHUNK_BYTES, 100, CHUNK_BYTES - 110, 7];
        let memory = leak_shared(lens.iter().sum()).unwrap();
        let (start, mut remote) = (1 << 40, 1 << 40);
        let request = |len: &u64| {
            let at = remote;
            remote += len;
            Request { opcode: Opcode::Read, local: memory.part((at - start) as usize, *len as usize), remote: at }
        };
        let requests: Vec<Request> = lens.iter().map(request).collect();
        let (cut, chunks) = chunks_of(&requests);
        assert_eq!(chunks.len(), 5);
        let mut next = start;
        for (nth, chunk) in chunks.iter().enumerate() {
            let bytes: usize = cut[chunk.clone()].iter().map(|request| request.local.len()).sum();
            assert_eq!(bytes as u64, if nth < 4 { CHUNK_BYTES } else { 7 });
        }
        for request in &cut {
            assert_eq!((request.remote, request.local.addr()), (next, memory.addr() + (next - start) as usize));
            next += request.local.len() as u64;
        }
        assert_eq!(next, remote);
    }
}
