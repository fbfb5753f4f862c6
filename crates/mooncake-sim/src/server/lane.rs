//! Lanes: how a process of another host reads and writes a segment, through its owner's process.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use mooncake_ids::{GRANULE, Rid};

use crate::memory::Memory;
use crate::pipe::{Receiver, Sender};
use crate::server::Served;
use crate::world::World;

/// A lane on which nothing moves for so long has failed.
const STANDSTILL: Duration = Duration::from_secs(1);

/// A process's end of a lane.
pub(crate) type Lane = (Sender<ToLane>, Receiver<FromLane>);

/// What a peer sends.
#[derive(Debug)]
pub(crate) enum ToLane {
    Write {
        rid: Rid,
        offset: u64,
        len: u64,
    },
    /// The next granule of it.
    Word(u64),
    Read {
        rid: Rid,
        offset: u64,
        len: u64,
    },
}

/// What it hears.
#[derive(Debug)]
pub(crate) enum FromLane {
    /// All of a write is in memory.
    Written,
    /// It is not let through; nothing of it lands.
    Refused,
    /// The next granule of a read.
    Word(u64),
    /// Its end, and whether what was sent was the placement's.
    Trailer(bool),
}

/// Ends a lane in mid-write.
#[derive(Debug, Clone)]
pub(crate) struct Cut {
    is_cut: Rc<Cell<bool>>,
}

impl Cut {
    pub fn cut(&self) {
        self.is_cut.set(true);
    }
}

/// A write did not get through.
#[derive(Debug)]
pub(crate) struct Unwritten {
    /// No byte of it can land any more.
    pub settled: bool,
    /// Its caller wanted to stop.
    pub interrupted: bool,
}

impl Unwritten {
    /// The lane, or its owner, failed.
    pub fn failed(settled: bool) -> Unwritten {
        Unwritten { settled, interrupted: false }
    }
}

/// Bytes of a write.
pub(crate) struct Extent<'a> {
    pub rid: Rid,
    pub offset: u64,
    pub words: &'a [u64],
}

/// The owner's end: serves until the peer hangs up.
pub(crate) async fn serve_lane(world: &World, served: &Rc<Served>, mut from: Receiver<ToLane>, to: Sender<FromLane>) {
    while let Ok(request) = from.next().await {
        let kept = match request {
            ToLane::Write { rid, offset, len } => take_in(world, served, (rid, offset, len), &mut from, &to).await,
            ToLane::Read { rid, offset, len } => give_out(world, &served.memory, (rid, offset, len), &to).await,
            // Of a write that was refused.
            ToLane::Word(_) => Some(()),
        };
        if kept.is_none() || served.is_removed() {
            return;
        }
    }
}

async fn take_in(
    world: &World,
    served: &Rc<Served>,
    (rid, offset, len): (Rid, u64, u64),
    from: &mut Receiver<ToLane>,
    to: &Sender<FromLane>,
) -> Option<()> {
    let cut = Cut { is_cut: Rc::default() };
    let Ok(admitted) = served.admit(rid, offset, len, Some(cut.clone())) else {
        return to.send(FromLane::Refused).ok();
    };
    world.sleep_micros(world.below(50)).await;
    if served.memory.stamp_if_newest(rid, offset, len).is_err() {
        return to.send(FromLane::Refused).ok();
    }
    for granule in Memory::granules(offset, len) {
        let word = loop {
            if cut.is_cut.get() {
                return None;
            }
            match world.until(world.now() + Duration::from_millis(2), from.next()).await {
                Some(Ok(ToLane::Word(word))) => break word,
                Some(_) => return None,
                None => {}
            }
        };
        if cut.is_cut.get() {
            return None;
        }
        served.memory.write(rid, granule, word);
    }
    // The last byte is in memory: a fence need not wait for the answer.
    drop(admitted);
    to.send(FromLane::Written).ok()
}

async fn give_out(
    world: &World,
    memory: &Memory,
    (rid, offset, len): (Rid, u64, u64),
    to: &Sender<FromLane>,
) -> Option<()> {
    if memory.is_stamped(rid, offset, len) {
        for granule in Memory::granules(offset, len) {
            world.sleep_micros(world.below(200)).await;
            to.send(FromLane::Word(memory.read(granule))).ok()?;
        }
    }
    to.send(FromLane::Trailer(memory.is_stamped(rid, offset, len))).ok()
}

/// Writes words over a lane, so many microseconds apart, until its caller wants to stop.
pub(crate) async fn write(
    world: &World,
    lane: Option<Lane>,
    Extent { rid, offset, words }: Extent<'_>,
    pace: u64,
    stop: Option<Duration>,
) -> Result<(), Unwritten> {
    let interrupted = || stop.is_some_and(|stop| world.now() >= stop);
    let Some((up, mut down)) = lane else { return Err(Unwritten::failed(true)) };
    let len = words.len() as u64 * GRANULE;
    if world.percent(world.loss()) {
        world.after(world.below(20_000), up.cutter());
    }
    up.send(ToLane::Write { rid, offset, len }).map_err(|_| Unwritten::failed(true))?;
    for word in words {
        world.sleep_micros(world.below(pace)).await;
        if interrupted() {
            return Err(Unwritten { settled: false, interrupted: true });
        }
        if up.send(ToLane::Word(*word)).is_err() {
            break;
        }
    }
    match world.until(wait(world, stop), down.next()).await {
        Some(Ok(FromLane::Written)) => Ok(()),
        Some(Ok(FromLane::Refused)) => Err(Unwritten::failed(true)),
        Some(_) => Err(Unwritten::failed(false)),
        None => Err(Unwritten { settled: false, interrupted: interrupted() }),
    }
}

/// Until when a lane is waited for.
fn wait(world: &World, stop: Option<Duration>) -> Duration {
    let standstill = world.now() + STANDSTILL;
    stop.map_or(standstill, |stop| stop.min(standstill))
}

/// Reads over a lane, until its caller wants to stop. `Ok(None)`: it is another placement's by now.
pub(crate) async fn read(
    world: &World,
    lane: Option<Lane>,
    rid: Rid,
    offset: u64,
    len: u64,
    stop: Option<Duration>,
) -> Result<Option<Vec<u64>>, ()> {
    let (up, mut down) = lane.ok_or(())?;
    up.send(ToLane::Read { rid, offset, len }).map_err(|_| ())?;
    let mut words = Vec::new();
    loop {
        match world.until(wait(world, stop), down.next()).await {
            Some(Ok(FromLane::Word(word))) => words.push(word),
            Some(Ok(FromLane::Trailer(good))) => return Ok(good.then_some(words)),
            _ => return Err(()),
        }
    }
}
