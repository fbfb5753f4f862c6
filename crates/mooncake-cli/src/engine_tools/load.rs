//! Threads that move batches for a while, and how long each batch took.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mooncake_memory::ForeignRange;
use mooncake_transfer_engine::{Engine, Opcode, PeerId, Request, Status};

use super::ToolError;

/// The longest that a batch is waited for; the engine's own deadlines are shorter.
const TIMEOUT: Duration = Duration::from_secs(3_600);

/// Bytes that are seeded at a time.
const PIECE: usize = 1 << 20;

/// The two ends between which bytes are moved.
pub struct Ends<'a> {
    pub engine: &'a Engine,
    /// The near end, as large as the largest load needs.
    pub memory: ForeignRange,
    /// The far ends, and where each begins. Threads take them in turn.
    pub remotes: Vec<(PeerId, u64)>,
}

impl Ends<'_> {
    fn remote(&self, thread: u64) -> (PeerId, u64) {
        self.remotes[thread as usize % self.remotes.len()]
    }
}

/// What each thread does again and again. Request `n` of thread `t` has its own bytes at both ends: the
/// `n * threads + t`th block.
#[derive(Clone)]
pub struct Load {
    pub opcodes: Vec<Opcode>,
    /// Bytes of a request.
    pub block: u64,
    /// Requests of a batch.
    pub batch: u64,
    pub threads: u64,
    /// Between a batch's end and the next one's begin.
    pub pause: Duration,
}

/// What came of it.
pub struct Measured {
    pub elapsed: Duration,
    /// Nanoseconds of each batch, ascending.
    pub batches: Vec<u32>,
}

impl Load {
    /// Bytes of all threads' batches; `None` if that is no number.
    pub fn bytes(&self) -> Option<u64> {
        self.block.checked_mul(self.batch)?.checked_mul(self.threads)
    }

    /// All threads at once, each for so long, and at least one batch.
    pub fn run(&self, ends: &Ends<'_>, duration: Duration) -> Result<Measured, ToolError> {
        let (began, stop) = (Instant::now(), AtomicBool::new(false));
        let worker = |thread: u64| -> Result<Vec<u32>, ToolError> {
            let mut took = Vec::new();
            for opcode in self.opcodes.iter().cycle() {
                let begin = Instant::now();
                if let Err(error) = self.batch(ends, *opcode, thread) {
                    stop.store(true, Ordering::Relaxed);
                    return Err(error);
                }
                took.push(u32::try_from(begin.elapsed().as_nanos()).unwrap_or(u32::MAX));
                if began.elapsed() >= duration || stop.load(Ordering::Relaxed) {
                    break;
                }
                if !self.pause.is_zero() {
                    std::thread::sleep(self.pause);
                }
            }
            Ok(took)
        };
        let ended: Vec<Result<Vec<u32>, ToolError>> = std::thread::scope(|scope| {
            let worker = &worker;
            let threads: Vec<_> = (0..self.threads).map(|thread| scope.spawn(move || worker(thread))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a worker of the bench panicked")).collect()
        });
        let elapsed = began.elapsed();
        let mut batches = ended.into_iter().collect::<Result<Vec<_>, ToolError>>()?.concat();
        batches.sort_unstable();
        Ok(Measured { elapsed, batches })
    }

    /// Where the `nth` request of a thread begins, in bytes from both ends' begins.
    fn offset(&self, nth: u64, thread: u64) -> u64 {
        self.block * (nth * self.threads + thread)
    }

    fn batch(&self, ends: &Ends<'_>, opcode: Opcode, thread: u64) -> Result<(), ToolError> {
        let (peer, remote) = ends.remote(thread);
        let request = |nth: u64| {
            let at = self.offset(nth, thread);
            let local = ends.memory.part(at as usize, self.block as usize);
            (peer, Request { opcode, local, remote: remote + at })
        };
        let batch = ends.engine.allocate(self.batch as usize);
        ends.engine.submit(batch, (0..self.batch).map(request).collect(), None)?;
        let status = ends.engine.wait(batch, TIMEOUT)?;
        let reason = ends.engine.batch_error(batch)?.unwrap_or_default();
        ends.engine.free(batch)?;
        if status == Status::Completed { Ok(()) } else { Err(ToolError::Batch { status, reason }) }
    }

    /// Fills the near end with bytes that tell their places, which any load that writes takes to the far end.
    pub fn seed(&self, ends: &Ends<'_>) -> Result<(), ToolError> {
        let bytes = self.bytes().unwrap_or_default();
        for at in (0..bytes).step_by(PIECE) {
            let length = PIECE.min((bytes - at) as usize);
            ends.memory.part(at as usize, length).write_from(&placed(at, length))?;
        }
        Ok(())
    }

    /// Reads what was seeded over other bytes, and compares.
    pub fn verify(&self, ends: &Ends<'_>) -> Result<(), ToolError> {
        for thread in 0..self.threads {
            let places = || (0..self.batch).map(|nth| self.offset(nth, thread));
            for at in places() {
                ends.memory.part(at as usize, self.block as usize).write_from(&vec![0; self.block as usize])?;
            }
            self.batch(ends, Opcode::Read, thread)?;
            for at in places() {
                let mut came = vec![0; self.block as usize];
                ends.memory.part(at as usize, self.block as usize).read_into(&mut came)?;
                if came != placed(at, self.block as usize) {
                    return Err(ToolError::Changed { block: self.block, batch: self.batch, thread });
                }
            }
        }
        Ok(())
    }

    /// Writes bytes that no other process writes, reads them back over others, and compares.
    pub fn check(&self, ends: &Ends<'_>, seed: u64) -> Result<(), ToolError> {
        let pattern = |nth: u64, thread: u64| pattern(seed ^ self.offset(nth, thread), self.block as usize);
        for thread in 0..self.threads {
            let parts = || (0..self.batch).map(|nth| (nth, self.offset(nth, thread) as usize));
            for (nth, at) in parts() {
                ends.memory.part(at, self.block as usize).write_from(&pattern(nth, thread))?;
            }
            self.batch(ends, Opcode::Write, thread)?;
            for (_, at) in parts() {
                ends.memory.part(at, self.block as usize).write_from(&vec![0; self.block as usize])?;
            }
            self.batch(ends, Opcode::Read, thread)?;
            for (nth, at) in parts() {
                let mut came = vec![0; self.block as usize];
                ends.memory.part(at, self.block as usize).read_into(&mut came)?;
                if came != pattern(nth, thread) {
                    return Err(ToolError::Changed { block: self.block, batch: self.batch, thread });
                }
            }
        }
        Ok(())
    }
}

/// Bytes that tell where they lie, whatever the size of the requests that bring them there.
fn placed(at: u64, len: usize) -> Vec<u8> {
    let word = |nth: u64| (nth.wrapping_add(1)).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    (at..at + len as u64).map(|place| word(place / 8)[(place % 8) as usize]).collect()
}

/// Bytes that depend on the seed in every place (xorshift64*).
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        bytes.extend_from_slice(&state.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

impl Measured {
    /// Microseconds that `share` of the batches took at most.
    pub fn quantile(&self, share: f64) -> f64 {
        let last = self.batches.len().saturating_sub(1);
        let nth = (self.batches.len() as f64 * share) as usize;
        self.batches.get(nth.min(last)).map_or(0.0, |ns| f64::from(*ns) / 1e3)
    }

    /// Microseconds of a batch.
    pub fn average(&self) -> f64 {
        let sum: u64 = self.batches.iter().map(|ns| u64::from(*ns)).sum();
        sum as f64 / 1e3 / self.batches.len().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_what_that_share_of_the_batches_took_at_most() {
        let measured =
            Measured { elapsed: Duration::from_secs(1), batches: (1..=1_000).map(|us| us * 1_000).collect() };
        assert_eq!(measured.quantile(0.5), 501.0);
        assert_eq!(measured.quantile(0.999), 1_000.0);
        assert_eq!(measured.quantile(1.0), 1_000.0);
        assert_eq!(measured.average(), 500.5);
        let none = Measured { elapsed: Duration::ZERO, batches: Vec::new() };
        assert_eq!((none.quantile(0.5), none.average()), (0.0, 0.0));
    }

    #[test]
    fn patterns_of_different_places_differ() {
        assert_ne!(pattern(1, 100), pattern(2, 100));
        assert_ne!(pattern(0, 8), pattern(4096, 8));
        assert_eq!(pattern(7, 13), pattern(7, 16)[..13]);
    }

    #[test]
    fn seeded_bytes_tell_their_places_however_they_are_cut() {
        let whole = placed(0, 4096);
        for (at, len) in [(0, 1), (3, 17), (8, 8), (4000, 96)] {
            assert_eq!(placed(at, len), whole[at as usize..at as usize + len]);
        }
        assert_ne!(placed(0, 64), placed(64, 64));
    }

    #[test]
    fn what_is_more_than_a_number_can_be_is_no_size() {
        let load =
            Load { opcodes: vec![Opcode::Read], block: 1 << 40, batch: 1 << 30, threads: 4, pause: Duration::ZERO };
        assert_eq!(load.bytes(), None);
        assert_eq!(Load { batch: 2, ..load }.bytes(), Some(8 << 40));
    }
}
