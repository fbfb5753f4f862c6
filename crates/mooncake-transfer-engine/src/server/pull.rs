//! Writes of a peer of this host: this engine pulls their bytes out of the peer's memory, a quantum at a time.

use std::os::fd::BorrowedFd;

use mooncake_memory::{AccessPage, PeerProcess, PullError};

use crate::memory::buffers::Buffers;
use crate::protocol::same_host::{Answer, Piece};

/// Bytes of one system call: the buffer is not free meanwhile.
const COPY_STEP_BYTES: u64 = 4 << 20;

/// Bytes pulled for one peer before the others have their turn, and the engine may end.
const QUANTUM_BYTES: u64 = 32 << 20;

/// What a peer has asked for.
pub(super) struct Pull {
    asked: Vec<Piece>,
    /// The piece that is next, and how many of its bytes have been pulled.
    at: usize,
    done: u64,
}

/// How far a pull is after a quantum.
pub(super) enum Progress {
    Done(Answer),
    /// There is more to do.
    Again,
    /// The writer has gone, or has withdrawn it. Before it uses its memory again it waits until nothing is copied from
    /// there.
    Gone,
}

impl Pull {
    pub fn new(asked: Vec<Piece>) -> Pull {
        Pull { asked, at: 0, done: 0 }
    }

    pub fn go_on(
        &mut self,
        buffers: &Buffers,
        fd: BorrowedFd<'_>,
        peer: &PeerProcess,
        access_page: &AccessPage,
    ) -> Progress {
        if (self.at, self.done) != (0, 0) && mooncake_net::has_hung_up(fd) {
            return Progress::Gone;
        }
        let mut quantum = QUANTUM_BYTES;
        while let Some(first) = self.asked.get(self.at) {
            if quantum == 0 {
                return Progress::Again;
            }
            let refused = Progress::Done(Answer::NotRegistered(self.at as u32));
            let Some(buffer) = buffers.find(first.to, first.len) else { return refused };
            let Some(_in_use) = buffer.enter() else { return refused };
            // Neighbours in one buffer go together, as far as one step reaches.
            let (mut destinations, mut from, mut bytes) = (Vec::new(), Vec::new(), 0);
            let (mut at, mut done) = (self.at, self.done);
            while let Some(piece) = self.asked.get(at).filter(|piece| buffer.holds(piece.to, piece.len)) {
                let step = (piece.len - done).min(COPY_STEP_BYTES - bytes);
                destinations.push(buffers.destination(buffer.part(piece.to + done, step)));
                from.push((piece.from.wrapping_add(done), step));
                bytes += step;
                done += step;
                if done < piece.len {
                    break;
                }
                (at, done) = (at + 1, 0);
            }
            let Some(copying) = access_page.copy() else { return Progress::Gone };
            match peer.pull_while(&from, &mut destinations, || copying.is_wanted()) {
                Ok(true) => (self.at, self.done) = (at, done),
                Ok(false) => return Progress::Gone,
                Err(error) => return Progress::Done(self.answer(&error)),
            }
            quantum = quantum.saturating_sub(bytes);
        }
        Progress::Done(Answer::Done)
    }

    fn answer(&self, error: &PullError) -> Answer {
        match error {
            PullError::Fault { .. } => Answer::Fault(self.at as u32),
            PullError::Refused { .. } | PullError::Ended { .. } => Answer::Refused(self.at as u32),
        }
    }
}
