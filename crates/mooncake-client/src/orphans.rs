//! Puts whose placements nobody knows: the request went out, its answer never
//! came. The same request, with its sequence, is sent until the master tells
//! what it did; then the placements are given up, so that no key stays busy
//! and no space stays taken until the reservation's deadline.

use std::sync::Arc;
use std::time::Duration;

use mooncake_wire::message::{Abort, PutStartReply, Request, reply, request};
use parking_lot::Mutex;

use crate::control::Control;
use crate::session::Session;

/// Most puts remembered; beyond it the master's deadline does it.
const MAX_ORPHANS: usize = 256;

const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(crate) struct Orphans {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// With the session that they belong to.
    waiting: Vec<(Arc<Session>, Request)>,
    running: bool,
}

impl Orphans {
    /// Takes charge of a `PutStart` without an answer.
    pub fn add(&self, control: &Arc<Control>, session: Arc<Session>, mut request: Request) {
        if let Some(request::Body::PutStart(start)) = &mut request.body {
            start.wait = false;
        }
        let mut state = self.state.lock();
        if state.waiting.len() >= MAX_ORPHANS {
            control.sequences.answered(request.sequence);
            return;
        }
        state.waiting.push((session, request));
        if !state.running {
            let control = control.clone();
            let thread = std::thread::Builder::new().name("mooncake-orphans".into());
            state.running = mooncake_transfer::thread::start(thread, move || run(&control)).is_ok();
        }
    }

    fn next(&self) -> Option<(Arc<Session>, Request)> {
        let mut state = self.state.lock();
        let next = state.waiting.first().cloned();
        state.running = next.is_some();
        next
    }

    fn settled(&self, control: &Control) {
        let mut state = self.state.lock();
        if !state.waiting.is_empty() {
            let (_, request) = state.waiting.remove(0);
            control.sequences.answered(request.sequence);
        }
    }
}

fn run(control: &Arc<Control>) {
    while let Some((session, request)) = control.orphans.next() {
        if control.is_stopped() || !control.session().is(&session) {
            control.orphans.settled(control);
            continue;
        }
        match control.repeat(&request, control.lookup_timeout) {
            Some(Ok(answer)) => {
                if let reply::Body::PutStart(PutStartReply { slots }) = answer.body {
                    let rids: Vec<u64> =
                        slots.iter().flat_map(|slot| &slot.replicas).map(|replica| replica.rid).collect();
                    if !rids.is_empty() {
                        let abort = request::Body::Abort(Abort { rids, writer_done: true });
                        // Failing that, the reservation's deadline does it.
                        let _ = control.finish("give up a put", abort, control.lookup_timeout);
                    }
                }
                control.orphans.settled(control);
            }
            Some(Err(_)) => control.orphans.settled(control),
            None => std::thread::sleep(PAUSE),
        }
    }
}
