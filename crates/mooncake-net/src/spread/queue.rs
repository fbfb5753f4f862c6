//! The chunks of one request, which lanes over several addresses draw: whose turn it is, and what becomes of the chunks
//! of a lane that fails. It has no socket, no clock and no lock.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Chunks that a lane may have under way: while one is answered, the next ones are on their way.
pub const AHEAD_MAX: usize = 8;

/// A lane with chunks under way that has not moved a byte for so long, while others do, is given up.
pub const LEFT_BEHIND: Duration = Duration::from_secs(1);

/// What a lane does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It carries this chunk.
    Chunk(usize),
    /// It gets done what it has under way. If that is nothing, it waits: another lane may fail, and return its chunks.
    Wait,
    /// The request is over.
    Over,
}

/// How far a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    /// All chunks are done.
    Done,
    /// It ends without: nothing more is taken.
    Stopped,
}

/// The chunks of one request.
#[derive(Debug)]
pub struct ChunkQueue {
    /// That no lane has had yet.
    fresh: Range<usize>,
    /// That a lane had which failed.
    returned: VecDeque<usize>,
    lanes: Vec<Lane>,
    /// Not done yet.
    left: usize,
    /// A chunk may be carried once more.
    repeats: bool,
    stage: Stage,
}

#[derive(Debug)]
struct Lane {
    under_way: VecDeque<usize>,
    /// Since when it has moved no byte of what it has under way.
    since: Instant,
    /// When it last moved one.
    moved: Option<Instant>,
    /// It asked for a chunk, had none, and there was none.
    idle: bool,
    failed: bool,
}

impl ChunkQueue {
    /// So many chunks, for so many lanes. `repeats`: a chunk of a lane that fails is carried by another one; otherwise
    /// the request ends with it.
    pub fn new(chunks: usize, lanes: usize, repeats: bool, now: Instant) -> ChunkQueue {
        let lane = || Lane { under_way: VecDeque::new(), since: now, moved: None, idle: false, failed: false };
        ChunkQueue {
            fresh: 0..chunks,
            returned: VecDeque::new(),
            lanes: (0..lanes).map(|_| lane()).collect(),
            left: chunks,
            repeats,
            stage: if chunks == 0 { Stage::Done } else { Stage::Open },
        }
    }

    /// What the lane does next. Towards the end it has fewer chunks under way, so that all lanes end at about one time,
    /// however different they are.
    pub fn next(&mut self, lane: usize, now: Instant) -> Next {
        if self.stage != Stage::Open || self.lanes[lane].failed {
            return Next::Over;
        }
        let (queued, lanes) = (self.fresh.len() + self.returned.len(), self.lanes.len());
        let own = &mut self.lanes[lane];
        let ahead = own.under_way.len();
        if queued == 0 || ahead > 0 && (ahead >= AHEAD_MAX || queued < ahead * lanes) {
            own.idle = ahead == 0;
            return Next::Wait;
        }
        let chunk = self.returned.pop_front().or_else(|| self.fresh.next()).expect("one is queued");
        if ahead == 0 {
            own.since = now;
        }
        own.idle = false;
        own.under_way.push_back(chunk);
        Next::Chunk(chunk)
    }

    /// Bytes of the lane have moved.
    pub fn moved(&mut self, lane: usize, now: Instant) {
        let lane = &mut self.lanes[lane];
        (lane.since, lane.moved) = (now, Some(now));
    }

    /// The oldest chunk that the lane has under way is done.
    pub fn done(&mut self, lane: usize, now: Instant) {
        self.moved(lane, now);
        self.lanes[lane].under_way.pop_front().expect("it has one under way");
        self.left -= 1;
        if self.left == 0 && self.stage == Stage::Open {
            self.stage = Stage::Done;
        }
    }

    /// The lane's connection is lost, and it may get another one: its chunks are anybody's.
    pub fn give_back(&mut self, lane: usize) {
        let chunks = std::mem::take(&mut self.lanes[lane].under_way);
        if !chunks.is_empty() && !self.repeats {
            self.stop();
        }
        self.returned.extend(chunks);
    }

    /// The lane carries nothing more. The request goes on without it, if it may and another one is left.
    pub fn failed(&mut self, lane: usize) {
        self.give_back(lane);
        self.lanes[lane].failed = true;
        if self.lanes.iter().all(|lane| lane.failed) {
            self.stop();
        }
    }

    /// The request ends, unless it is done.
    pub fn stop(&mut self) {
        if self.stage == Stage::Open {
            self.stage = Stage::Stopped;
        }
    }

    /// All chunks are done.
    pub fn is_done(&self) -> bool {
        self.stage == Stage::Done
    }

    /// No lane takes a chunk any more.
    pub fn is_over(&self) -> bool {
        self.stage != Stage::Open
    }

    /// Whether the lane is to be given up: the others show that it is its address which stands still, not the peer.
    ///
    /// Either they moved bytes since, or they are at the end of theirs and could carry its own. If the peer stood
    /// still, none would get on.
    pub fn is_left_behind(&self, lane: usize, now: Instant) -> bool {
        let own = &self.lanes[lane];
        if own.under_way.is_empty() || now.saturating_duration_since(own.since) < LEFT_BEHIND || !self.repeats {
            return false;
        }
        let gets_on = |other: &Lane| other.idle || other.moved.is_some_and(|at| at >= own.since + LEFT_BEHIND / 2);
        let mut others = self.lanes.iter().enumerate().filter(|(nth, other)| *nth != lane && !other.failed);
        others.any(|(_, other)| gets_on(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn queue(chunks: usize, lanes: usize) -> (ChunkQueue, Instant) {
        let now = Instant::now();
        (ChunkQueue::new(chunks, lanes, true, now), now)
    }

    /// All that the lane may have now.
    fn draw(queue: &mut ChunkQueue, lane: usize, now: Instant) -> Vec<usize> {
        let one = || match queue.next(lane, now) {
            Next::Chunk(chunk) => Some(chunk),
            Next::Wait | Next::Over => None,
        };
        std::iter::from_fn(one).collect()
    }

    #[test]
    fn every_chunk_is_carried_once_and_a_faster_lane_carries_more() {
        let (mut queue, now) = queue(100, 2);
        let (mut carried, mut by_lane) = (Vec::new(), [0, 0]);
        // The first lane gets three done while the other one gets one done.
        for turn in 0.. {
            let lane = usize::from(turn % 4 == 3);
            carried.extend(draw(&mut queue, 0, now));
            carried.extend(draw(&mut queue, 1, now));
            if queue.is_over() {
                break;
            }
            if !queue.lanes[lane].under_way.is_empty() {
                queue.done(lane, now);
                by_lane[lane] += 1;
            }
        }
        carried.sort_unstable();
        assert_eq!(carried, (0..100).collect::<Vec<_>>());
        assert!(queue.is_done() && (70..=80).contains(&by_lane[0]), "{by_lane:?}");
    }

    #[test]
    fn a_lane_goes_ahead_while_much_is_left_and_has_one_chunk_at_the_end() {
        let (mut queue, now) = queue(40, 2);
        assert_eq!(draw(&mut queue, 0, now).len(), AHEAD_MAX);
        let (mut few, now) = self::queue(4, 2);
        assert_eq!(draw(&mut few, 0, now), [0, 1], "two are left for the other one, and no third is taken");
        assert_eq!(draw(&mut few, 1, now), [2]);
        few.done(1, now);
        assert_eq!(draw(&mut few, 1, now), [3], "what it has time for");
    }

    #[test]
    fn chunks_of_a_lane_that_fails_are_carried_by_another_one_before_fresh_ones() {
        let (mut queue, now) = queue(40, 2);
        let lost = draw(&mut queue, 0, now);
        assert_eq!(queue.next(1, now), Next::Chunk(AHEAD_MAX));
        queue.failed(0);
        assert_eq!(queue.next(0, now), Next::Over);
        assert_eq!(queue.next(1, now), Next::Chunk(lost[0]));
        queue.failed(1);
        assert!(queue.is_over() && !queue.is_done(), "no lane is left");
    }

    #[test]
    fn a_lane_without_work_waits_for_what_another_one_may_return() {
        let (mut queue, now) = queue(2, 2);
        assert_eq!(draw(&mut queue, 0, now), [0]);
        assert_eq!(draw(&mut queue, 1, now), [1]);
        queue.done(1, now);
        assert_eq!(queue.next(1, now), Next::Wait);
        queue.give_back(0);
        assert_eq!(queue.next(1, now), Next::Chunk(0));
        queue.done(1, now);
        assert_eq!((queue.next(0, now), queue.next(1, now)), (Next::Over, Next::Over));
        assert!(queue.is_done());
    }

    #[test]
    fn a_request_that_may_not_be_repeated_ends_with_the_lane_that_has_a_part_of_it() {
        let now = Instant::now();
        let mut queue = ChunkQueue::new(10, 3, false, now);
        queue.failed(2);
        assert!(!queue.is_over(), "it had nothing yet");
        assert_eq!(queue.next(0, now), Next::Chunk(0));
        queue.next(1, now);
        queue.failed(0);
        assert_eq!(queue.next(1, now), Next::Over);
        queue.done(1, now);
        assert!(!queue.is_done());
    }

    #[test]
    fn a_lane_that_stands_still_is_given_up_only_where_another_one_gets_on() {
        let (mut queue, now) = queue(40, 2);
        draw(&mut queue, 0, now);
        draw(&mut queue, 1, now);
        assert!(!queue.is_left_behind(0, now + 10 * SECOND), "both stand still: it is the peer");
        queue.done(1, now + SECOND / 4);
        assert!(!queue.is_left_behind(0, now + 10 * SECOND), "they stopped at about one time");
        queue.done(1, now + SECOND);
        assert!(!queue.is_left_behind(0, now + SECOND / 2), "not so soon");
        assert!(queue.is_left_behind(0, now + SECOND));
        assert!(!queue.is_left_behind(1, now + SECOND), "it got on");
        queue.moved(0, now + SECOND);
        assert!(!queue.is_left_behind(0, now + SECOND), "it gets on again, however slowly");
    }

    #[test]
    fn the_last_chunk_is_taken_from_a_lane_that_stands_still_by_one_without_work() {
        let (mut queue, now) = queue(2, 2);
        draw(&mut queue, 0, now);
        draw(&mut queue, 1, now);
        queue.done(1, now);
        assert_eq!(queue.next(1, now), Next::Wait);
        assert!(!queue.is_left_behind(0, now + SECOND / 2) && queue.is_left_behind(0, now + SECOND));
        queue.failed(0);
        assert_eq!(queue.next(1, now + SECOND), Next::Chunk(0));
        assert!(!queue.is_left_behind(1, now + 9 * SECOND), "there is no other one");
    }
}
