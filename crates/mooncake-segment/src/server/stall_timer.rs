//! How long the peer of a lane may take over a request, and whether its worker waits there for it.

use std::io;
use std::time::{Duration, Instant};

use super::tcp_lane::{End, Worker};
use crate::rate::RATE_MIN;

/// How long a peer may take.
#[derive(Debug)]
pub(super) struct StallTimer {
    /// A peer that moves no byte for so long in the middle of a request loses its lane.
    stall_timeout: Duration,
    /// Of the request.
    bytes: u64,
    /// The end of the request, since its peer first let its worker wait.
    due: Option<Instant>,
    /// The lane is put aside: when it is lost.
    pub(super) until: Option<Instant>,
}

impl StallTimer {
    /// With a peer that may move no byte for so long.
    pub(super) fn new(stall_timeout: Duration) -> StallTimer {
        StallTimer { stall_timeout, bytes: 0, due: None, until: None }
    }

    /// From here on a request of so many bytes has its time; 0: as much as is known of the next one.
    pub(super) fn begin(&mut self, bytes: u64) {
        (self.bytes, self.due) = (bytes, None);
    }

    /// Moves some bytes of a request. `None`: the peer lets its worker wait, and the lane is to be put aside. The first
    /// try does not wait unless the worker is held up already.
    pub(super) fn move_some(
        &mut self,
        worker: &mut Worker<'_>,
        mut move_some: impl FnMut(bool) -> io::Result<usize>,
    ) -> Result<Option<usize>, End> {
        loop {
            let waits = worker.held_up;
            if waits {
                let now = Instant::now();
                let whole = self.stall_timeout + Duration::from_secs(self.bytes / RATE_MIN);
                let due = *self.due.get_or_insert(now + whole);
                if now >= due {
                    return Err(End::Bad("it took too long for its request".into()));
                }
            }
            match move_some(waits) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if waits {
                        let still = Instant::now() + self.stall_timeout;
                        self.until = Some(self.due.map_or(still, |due| due.min(still)));
                        return Ok(None);
                    }
                    worker.is_held_up();
                }
                moved => return moved.map(Some).map_err(End::from),
            }
        }
    }
}
