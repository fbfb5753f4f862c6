//! Runs of device memory through a ring.

use super::ring::{POOL, Ring, SLOT, SLOTS};
use super::{Direction, driver};
use crate::error::CopyError;

/// Least bytes of a step of a run that is shorter than the ring: below, what a
/// step costs is more than what it gains by running beside the others.
const STEP_BYTES_MIN: usize = 256 << 10;

/// The ring of one call, from its first device piece on. Dropped, it waits for
/// what is under way.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    ring: Option<Ring>,
}

impl Staging {
    /// Passes the bytes of a run, in order, to `take`.
    pub(crate) fn gather(
        &mut self,
        device: i32,
        ranges: &[(usize, usize)],
        mut take: impl FnMut(*const u8, usize),
    ) -> Result<(), CopyError> {
        let ring = self.ring(device)?;
        let mut steps = Steps::new(ranges);
        let (mut begun, mut taken) = (0, 0);
        let mut lens = [0; SLOTS];
        loop {
            while begun < taken + SLOTS {
                let Some(len) = steps.next() else { break };
                let slot = begun % SLOTS;
                ring.wait(slot)?;
                ring.copy(slot, Direction::ToHost, &steps.ranges)?;
                lens[slot] = len;
                begun += 1;
            }
            if taken == begun {
                return Ok(());
            }
            let slot = taken % SLOTS;
            ring.wait(slot)?;
            take(ring.memory(slot), lens[slot]);
            taken += 1;
        }
    }

    /// Fills a run with bytes that `give` puts where it is told, in order. They
    /// have arrived once [`Staging::finish`] has returned.
    pub(crate) fn scatter(
        &mut self,
        device: i32,
        ranges: &[(usize, usize)],
        mut give: impl FnMut(*mut u8, usize),
    ) -> Result<(), CopyError> {
        let ring = self.ring(device)?;
        let mut steps = Steps::new(ranges);
        for slot in (0..SLOTS).cycle() {
            let Some(len) = steps.next() else { break };
            ring.wait(slot)?;
            give(ring.memory(slot), len);
            ring.copy(slot, Direction::ToDevice, &steps.ranges)?;
        }
        Ok(())
    }

    /// Waits for everything.
    pub(crate) fn finish(&mut self) -> Result<(), CopyError> {
        self.ring.as_mut().map_or(Ok(()), Ring::wait_for_all)
    }

    fn ring(&mut self, device: i32) -> Result<&mut Ring, CopyError> {
        if self.ring.as_ref().is_some_and(|ring| ring.device() != device) {
            self.finish()?;
            // Before the call asks for another: calls that hold one and wait for one would wait for ever.
            self.ring = None;
        }
        if self.ring.is_none() {
            // It was there when it was asked what the memory is.
            let driver = driver().ok_or(CopyError::Forked)?;
            let mut ring = POOL.check_out(driver, device)?;
            ring.follow_default()?;
            self.ring = Some(ring);
        }
        Ok(self.ring.as_mut().expect("set above"))
    }
}

/// Cuts a run into what goes through a slot at a time.
struct Steps<'a> {
    /// What is still to be cut.
    ahead: &'a [(usize, usize)],
    /// Bytes of the first of `ahead` that are done.
    done: usize,
    most: usize,
    /// The step's ranges.
    ranges: Vec<(usize, usize)>,
}

impl<'a> Steps<'a> {
    fn new(ranges: &'a [(usize, usize)]) -> Self {
        let total = ranges.iter().fold(0_usize, |total, (_, len)| total.saturating_add(*len));
        Self { ahead: ranges, done: 0, most: (total / SLOTS).clamp(STEP_BYTES_MIN, SLOT), ranges: Vec::new() }
    }

    /// Bytes of the next step, if there is one.
    fn next(&mut self) -> Option<usize> {
        self.ranges.clear();
        let mut left = self.most;
        while let Some((&(addr, len), rest)) = self.ahead.split_first() {
            let now = left.min(len - self.done);
            if now > 0 {
                self.ranges.push((addr.wrapping_add(self.done), now));
            }
            left -= now;
            self.done += now;
            if self.done < len {
                break;
            }
            (self.ahead, self.done) = (rest, 0);
        }
        let len = self.most - left;
        (len > 0).then_some(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(ranges: &[(usize, usize)]) -> Vec<Vec<(usize, usize)>> {
        let mut steps = Steps::new(ranges);
        std::iter::from_fn(|| steps.next().map(|len| (len, steps.ranges.clone())))
            .inspect(|(len, ranges)| assert_eq!(*len, ranges.iter().map(|(_, len)| len).sum::<usize>()))
            .map(|(_, ranges)| ranges)
            .collect()
    }

    #[test]
    fn small_pieces_share_a_step_and_large_ones_take_several() {
        assert_eq!(steps(&[]), [[(0, 0); 0]; 0]);
        assert_eq!(steps(&[(5, 0)]), [[(0, 0); 0]; 0]);
        assert_eq!(steps(&[(100, 10), (500, 0), (900, 20)]), [[(100, 10), (900, 20)]]);
        let large = steps(&[(0, 3), (1000, 9 << 20), (1 << 40, 5)]);
        assert_eq!(large.len(), 10);
        assert_eq!(large[0], [(0, 3), (1000, (1 << 20) - 3)]);
        assert_eq!(large[9], [(1000 + (9 << 20) - 3, 3), (1 << 40, 5)]);
        assert_eq!(
            steps(&[(0, STEP_BYTES_MIN), (STEP_BYTES_MIN, 1)]).len(),
            2,
            "a run of a step and a bit is two steps"
        );
    }
}
