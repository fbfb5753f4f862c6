//! How a process comes to memory that another one left behind, or begins with memory of its own.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_ids::SegmentUuid;
use mooncake_memory::{Expect, SealedFile, SegmentMemory};
use mooncake_os::{Lock, OwnFile, random_bytes};
use mooncake_segment::Epoch;
use mooncake_segment::machine::Tenure;

use super::holder::KeepOptions;
use super::memory::{KeptMemory, STATE, names};
use super::state::{KeptSegment, KeptState, STATE_BYTES, StateError};
use crate::error::{Cause, StoreError};
use crate::machine::inheritance::{Inheritance, Next, State, Why};

/// What an owner locks of the state.
const OWNER: std::ops::Range<u64> = 0..1;

/// A segment that was taken over.
#[derive(Debug)]
pub(crate) struct Adopted {
    pub memory: Arc<SegmentMemory>,
    pub access_key: u64,
    pub tenure: Tenure,
}

/// What a process begins with.
#[derive(Debug)]
pub(crate) struct Beginning {
    pub kept: Arc<KeptMemory>,
    /// What it has of its predecessor's memory.
    pub adopted: Vec<Adopted>,
    /// The state names segments that could not be taken over: their session is to end.
    pub is_heir: bool,
}

/// Looks what the holder has, and waits for the end of the predecessor if it has anything.
pub(crate) fn begin(
    options: &KeepOptions,
    boot_id: [u8; 16],
    interrupted: &dyn Fn() -> bool,
) -> Result<Beginning, StoreError> {
    let held = options.holder.held().map_err(setup("asking for kept memory"))?;
    let all: Vec<String> = held.iter().map(|(name, _)| name.clone()).collect();
    let mut descriptors: BTreeMap<String, OwnedFd> = held.into_iter().collect();
    let beginning = match descriptors.remove(STATE) {
        None => fresh(options, boot_id)?,
        Some(state) => match inherit(options, boot_id, state, descriptors, interrupted)? {
            Ok(beginning) => beginning,
            Err(reason) => {
                tracing::warn!(reason, "the memory that is kept is not taken over; this process makes its own");
                fresh(options, boot_id)?
            }
        },
    };
    // What no process comes to any more is memory that nothing gives back.
    let mut needed: Vec<String> = beginning.adopted.iter().flat_map(|it| names(it.memory.uuid())).collect();
    needed.extend(beginning.is_heir.then(|| STATE.to_owned()));
    for name in all.iter().filter(|name| !needed.contains(name)) {
        if let Err(error) = options.holder.let_go(name) {
            tracing::warn!(name, %error, "memory that is not taken over is still held");
        }
    }
    Ok(beginning)
}

/// The first owner of its memory.
fn fresh(options: &KeepOptions, boot_id: [u8; 16]) -> Result<Beginning, StoreError> {
    let secret = random_bytes().map_err(setup("making a secret"))?;
    let file = SealedFile::create("kv-segment-state", STATE_BYTES).map_err(setup("making the state of memory"))?;
    let lock = OwnFile::reopen(file.as_fd(), true).map_err(setup("opening the state of memory"))?;
    if !lock.try_lock(Lock::Exclusive, OWNER).map_err(setup("locking the state of memory"))? {
        return Err(setup("locking the state of memory")("another process has it locked"));
    }
    let state = KeptState { boot_id, secret, tenure: 1, name: String::new(), segments: Vec::new() };
    let (bytes, at) = state.encode(1);
    file.write(&bytes, at).map_err(setup("writing the state of memory"))?;
    let kept = KeptMemory::new(options, (file, lock), (state, 1), None, Vec::new());
    Ok(Beginning { kept, adopted: Vec::new(), is_heir: false })
}

type Inherited = Result<Beginning, String>;

/// The next owner, or why it is none.
fn inherit(
    options: &KeepOptions,
    boot_id: [u8; 16],
    state: OwnedFd,
    descriptors: BTreeMap<String, OwnedFd>,
    interrupted: &dyn Fn() -> bool,
) -> Result<Inherited, StoreError> {
    let file = match SealedFile::adopt(state, STATE_BYTES) {
        Ok(file) => file,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let lock = OwnFile::reopen(file.as_fd(), true).map_err(setup("opening the state of kept memory"))?;
    let began = Instant::now();
    let mut heir = Inheritance::new(Duration::ZERO, boot_id);
    let mut found: Option<(KeptState, u64)> = None;
    let (mut adopted, mut lost) = (Vec::new(), Vec::new());
    let mut descriptors = Some(descriptors);
    loop {
        let now = began.elapsed();
        match heir.next(now) {
            Next::Wait(until) => {
                if interrupted() {
                    return Err(Cause::Interrupted.into());
                }
                std::thread::sleep(until.saturating_sub(now));
            }
            Next::Lock => {
                let locking = setup("locking the state of kept memory");
                let has_lock = lock.try_lock(Lock::Exclusive, OWNER).map_err(locking)?;
                if has_lock {
                    // Another heir may have come and gone before.
                    match read(&file)? {
                        Ok(state) => found = Some(state),
                        Err(error) => return Ok(Err(error.to_string())),
                    }
                }
                let said = found.as_ref().map(|(state, _)| state);
                heir.lock_tried(now, has_lock, told(said));
            }
            Next::Write(state) => {
                let Some((kept, sequence)) = &mut found else {
                    return Ok(Err("it was written before it was read".to_owned()));
                };
                let descriptors = descriptors.take().unwrap_or_default();
                (adopted, lost) = adopt(kept, state.tenure, descriptors);
                kept.tenure = state.tenure;
                kept.segments.retain(|segment| !lost.contains(&segment.uuid));
                *sequence += 1;
                let (bytes, at) = kept.encode(*sequence);
                file.write(&bytes, at).map_err(setup("writing the state of kept memory"))?;
                heir.written();
            }
            Next::Own(_) => break,
            Next::Renounce(why) => {
                return Ok(Err(match why {
                    Why::Owned => "its owner has not ended in 30 s, or another process has taken it over".to_owned(),
                    Why::OtherBoot => "it is of another boot of this host".to_owned(),
                }));
            }
        }
    }
    let Some(written) = found else { return Ok(Err("its state was not read".to_owned())) };
    let (segments, bytes) = (adopted.len(), adopted.iter().map(|it| it.memory.bytes()).sum::<u64>());
    tracing::info!(tenure = written.0.tenure, segments, bytes, "the memory of a process that has ended is taken over");
    let is_heir = !adopted.is_empty() || !lost.is_empty();
    let kept = KeptMemory::new(options, (file, lock), written, Some(heir), lost);
    Ok(Ok(Beginning { kept, adopted, is_heir }))
}

fn read(file: &SealedFile) -> Result<Result<(KeptState, u64), StateError>, StoreError> {
    let bytes = file.read().map_err(setup("reading the state of kept memory"))?;
    Ok(KeptState::decode(&bytes))
}

/// What the machine is to know of it: which epochs its segments have taken, they say each for itself.
fn told(state: Option<&KeptState>) -> State {
    let nothing = State { boot_id: [0; 16], secret: [0; 16], tenure: 0, taken: Epoch::default() };
    state.map_or(nothing, |state| State {
        boot_id: state.boot_id,
        secret: state.secret,
        tenure: state.tenure,
        taken: Epoch::default(),
    })
}

/// The segments that can be taken over, and those that cannot.
fn adopt(
    state: &KeptState,
    tenure: u32,
    mut descriptors: BTreeMap<String, OwnedFd>,
) -> (Vec<Adopted>, Vec<SegmentUuid>) {
    let (mut adopted, mut lost) = (Vec::new(), Vec::new());
    for segment in &state.segments {
        let KeptSegment { uuid, access_key, bytes, populated, taken } = *segment;
        let [data, control] = names(uuid).map(|name| descriptors.remove(&name));
        let memory = match (data, control) {
            (Some(data), Some(control)) => SegmentMemory::adopt(data, control, Expect { uuid, bytes }, populated)
                .map_err(|error| error.to_string()),
            _ => Err("its descriptors are not held".to_owned()),
        };
        match memory {
            Ok(memory) => {
                let (memory, tenure) = (Arc::new(memory), Tenure { number: tenure, taken });
                adopted.push(Adopted { memory, access_key, tenure });
            }
            Err(reason) => {
                tracing::warn!(%uuid, bytes, reason, "a segment that is kept is not taken over");
                lost.push(uuid);
            }
        }
    }
    (adopted, lost)
}

fn setup<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> StoreError {
    move |error| Cause::Setup { what, reason: error.to_string() }.into()
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::fd::BorrowedFd;

    use mooncake_ids::Rid;
    use mooncake_memory::{Destination, SegmentOptions, Source, Verify};
    use parking_lot::Mutex;

    use super::*;
    use crate::kept::MemoryHolder;
    use crate::kept::state::KeptState;

    const BOOT: [u8; 16] = [1; 16];
    const BYTES: u64 = 1 << 20;
    const EPOCH: Epoch = Epoch::numbered(3);

    /// What holds descriptors in this process.
    #[derive(Default)]
    struct Drawer(Mutex<BTreeMap<String, OwnedFd>>);

    impl MemoryHolder for Drawer {
        fn held(&self) -> io::Result<Vec<(String, OwnedFd)>> {
            self.0.lock().iter().map(|(name, fd)| Ok((name.clone(), fd.try_clone()?))).collect()
        }

        fn begun(&self) {}

        fn hold(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
            self.0.lock().insert(name.to_owned(), fd.try_clone_to_owned()?);
            Ok(())
        }

        fn let_go(&self, name: &str) -> io::Result<()> {
            self.0.lock().remove(name);
            Ok(())
        }

        fn is_there(&self) -> bool {
            true
        }
    }

    struct Host {
        drawer: Arc<Drawer>,
        options: KeepOptions,
    }

    impl Host {
        fn new() -> Host {
            let drawer = Arc::new(Drawer::default());
            Host { options: KeepOptions { time: Duration::from_secs(60), holder: drawer.clone() }, drawer }
        }

        /// A process begins.
        fn begin(&self) -> Beginning {
            begin(&self.options, BOOT, &|| false).unwrap()
        }

        /// The first process, with a segment that has one object.
        fn first(&self) -> (Beginning, Arc<SegmentMemory>) {
            let beginning = self.begin();
            assert!(beginning.adopted.is_empty() && !beginning.is_heir);
            let memory = Arc::new(SegmentMemory::create(BYTES, SegmentOptions::default()).unwrap());
            memory.populate_step(BYTES / 2).unwrap();
            memory.mapping().write(Rid(2), 0, &[Source::new(&[7; 4096])]).unwrap();
            let tenure = beginning.kept.note_fresh(&memory, 9, EPOCH).unwrap();
            assert_eq!(tenure, Tenure { number: 1, taken: EPOCH });
            let all = std::slice::from_ref(&memory);
            assert!(!beginning.kept.is_held(all) && beginning.kept.hand_over(all));
            assert!(beginning.kept.is_held(all));
            (beginning, memory)
        }

        fn names(&self) -> Vec<String> {
            self.drawer.0.lock().keys().cloned().collect()
        }
    }

    #[test]
    fn each_process_has_what_the_one_before_held_and_the_next_tenure() {
        let host = Host::new();
        let (first, memory) = host.first();
        let uuid = memory.uuid();
        first.kept.note_taken(uuid, 4).unwrap();
        first.kept.is_named("host:1").unwrap();
        drop((first, memory));
        for tenure in 2..5 {
            let next = host.begin();
            let [Adopted { memory, access_key, tenure: found }] = &next.adopted[..] else { panic!("{next:?}") };
            assert_eq!((memory.uuid(), *access_key, memory.populated()), (uuid, 9, BYTES / 2));
            assert_eq!(*found, Tenure { number: tenure, taken: Epoch::numbered(4) });
            assert_eq!((next.kept.tenure(), &*next.kept.name(), next.is_heir), (tenure, "host:1", true));
            let mut read = [0; 4096];
            let mut pieces = [Destination::new(&mut read)];
            memory.mapping().read(Rid(2), 0, &mut pieces, Verify::Skip).unwrap();
            assert_eq!(read, [7; 4096]);
            let turns = [(); 2].map(|()| next.kept.claim(Vec::new()).claim.turn);
            assert_eq!(turns, [u64::from(tenure) << 32 | 1, u64::from(tenure) << 32 | 2]);
        }
    }

    #[test]
    fn what_its_owner_has_locked_is_waited_for_and_an_interrupt_ends_that() {
        let host = Host::new();
        let _first = host.first();
        let error = begin(&host.options, BOOT, &|| true).unwrap_err();
        assert!(matches!(error.cause(), Cause::Interrupted), "{error}");
        assert_eq!(host.names().len(), 3, "it is the other one's");
    }

    #[test]
    fn a_segment_that_cannot_be_taken_over_is_named_as_lost_and_let_go_of() {
        let host = Host::new();
        let (first, memory) = host.first();
        let uuid = memory.uuid();
        drop(first);
        memory.give_back(&[]).unwrap();
        let next = host.begin();
        assert!(next.adopted.is_empty() && next.is_heir && next.kept.has_claims());
        let claim = next.kept.claim(Vec::new()).claim;
        assert_eq!((claim.lost, claim.held), (vec![uuid.0.to_vec().into()], vec![]));
        assert_eq!(host.names(), [STATE]);
        next.kept.renounced();
        assert!(!next.kept.has_claims());
    }

    #[test]
    fn of_another_boot_or_without_a_state_that_can_be_read_memory_is_made_anew_and_none_is_held_any_more() {
        let other_boot = |state: &mut KeptState| state.boot_id = [2; 16];
        for spoil in [Some(other_boot as fn(&mut KeptState)), None] {
            let host = Host::new();
            drop(host.first());
            let file = SealedFile::adopt(host.drawer.0.lock()[STATE].try_clone().unwrap(), STATE_BYTES).unwrap();
            let (mut state, sequence) = KeptState::decode(&file.read().unwrap()).unwrap();
            match spoil {
                Some(spoil) => {
                    spoil(&mut state);
                    let (bytes, at) = state.encode(sequence + 1);
                    file.write(&bytes, at).unwrap();
                }
                None => file.write(&vec![0; STATE_BYTES as usize], 0).unwrap(),
            }
            let next = host.begin();
            assert!(next.adopted.is_empty() && !next.is_heir);
            assert_eq!((next.kept.tenure(), host.names()), (1, vec![]));
            let first = next.kept.keep(Some(Duration::from_secs(1)));
            assert!((first.ms, first.turn) == (1000, 0) && first.secret[..] != state.secret);
        }
    }
}
