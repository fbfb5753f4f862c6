//! Replicas that reads found bad. A thread that lives only while there are any
//! tells the master, many with one message: no read waits for that. Where the
//! read did not look the key up a second time, the thread does.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_wire::message::{BadReplica, Lookup, reply, request};
use mooncake_wire::pack_keys;
use parking_lot::Mutex;

use crate::control::Control;
use crate::error::StoreError;
use crate::rounds::rounds;

/// Most replicas that wait to be reported; the next read of another finds it again.
const MAX_WAITING: usize = 8_192;

/// Replicas in one message; a master takes no more.
const ROUND: usize = 1_024;

/// So long a replica is not reported a second time: its owner has not looked yet, or sees nothing wrong.
const PAUSE: Duration = Duration::from_secs(1);

/// A replica that could not be verified.
#[derive(Debug, Clone)]
pub(crate) struct Suspect {
    pub key: Vec<u8>,
    pub rid: u64,
    pub reason: String,
    /// Whether the bytes were the placement's, or a second look-up named it again: nothing has overtaken the reader.
    pub confirmed: bool,
}

impl AsRef<[u8]> for Suspect {
    fn as_ref(&self) -> &[u8] {
        &self.key
    }
}

#[derive(Debug, Default)]
pub(crate) struct Suspects {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By rid.
    waiting: HashMap<u64, Suspect>,
    /// When a rid was reported last.
    reported: HashMap<u64, Instant>,
    running: bool,
}

impl Suspects {
    /// Has a replica reported.
    pub fn add(&self, control: &Arc<Control>, suspect: Suspect) {
        let mut state = self.state.lock();
        if let Some(waiting) = state.waiting.get_mut(&suspect.rid) {
            waiting.confirmed |= suspect.confirmed;
        } else {
            let is_recent = state.reported.get(&suspect.rid).is_some_and(|at| at.elapsed() < PAUSE);
            if is_recent || state.waiting.len() >= MAX_WAITING {
                return;
            }
            state.waiting.insert(suspect.rid, suspect);
        }
        // Also where there was no thread to be had for an earlier report.
        if !state.running {
            let control = control.clone();
            let thread = std::thread::Builder::new().name("mooncake-suspects".into());
            state.running = mooncake_transfer::thread::start(thread, move || run(&control)).is_ok();
        }
    }

    /// All that wait. Nothing: the thread is to end.
    fn take(&self) -> Vec<Suspect> {
        let mut state = self.state.lock();
        let all: Vec<Suspect> = state.waiting.drain().map(|(_, suspect)| suspect).collect();
        state.running = !all.is_empty();
        state.reported.retain(|_, at| at.elapsed() < PAUSE);
        let now = Instant::now();
        state.reported.extend(all.iter().filter(|suspect| suspect.confirmed).map(|suspect| (suspect.rid, now)));
        all
    }

    /// It was not reported after all: the next read that finds it bad says so again.
    fn forget(&self, suspects: &[Suspect]) {
        let mut state = self.state.lock();
        for suspect in suspects {
            state.reported.remove(&suspect.rid);
        }
    }
}

fn run(control: &Arc<Control>) {
    loop {
        let all = control.suspects.take();
        if all.is_empty() {
            return;
        }
        for round in rounds(&all, ROUND) {
            if control.is_stopped() {
                continue;
            }
            if let Err(error) = report(control, round) {
                tracing::debug!(%error, "bad replicas not reported");
                control.suspects.forget(round);
            }
        }
    }
}

fn report(control: &Control, suspects: &[Suspect]) -> Result<(), StoreError> {
    let (mut bad, unsure): (Vec<Suspect>, Vec<Suspect>) =
        suspects.iter().cloned().partition(|suspect| suspect.confirmed);
    if !unsure.is_empty() {
        let body = request::Body::Lookup(Lookup { keys: Some(pack_keys(&unsure)) });
        let answer = control.query_on_any_thread("a lookup", body, control.lookup_timeout)?;
        let reply::Body::Lookup(found) = answer.body else { return Err(control.confused("a lookup")) };
        let named = unsure.into_iter().zip(found.objects);
        let still = named.filter(|(suspect, object)| object.replicas.iter().any(|other| other.rid == suspect.rid));
        bad.extend(still.map(|(suspect, _)| suspect));
    }
    let mut messages = bad.into_iter().map(|Suspect { key, rid, reason, .. }| {
        tracing::warn!(rid = format_args!("{rid:#x}"), reason, "a replica is bad; reported");
        BadReplica { key: key.into(), rid, reason, more: Vec::new() }
    });
    let Some(first) = messages.next() else { return Ok(()) };
    let body = request::Body::BadReplica(BadReplica { more: messages.collect(), ..first });
    control.query_on_any_thread("the report of bad replicas", body, control.lookup_timeout).map(drop)
}
