//! Placements that a call has left behind. Of a put whose answer never came
//! nobody knows them: the same request, with its sequence, is sent until the
//! master tells what it did. Those of a put that could not be ended, or given
//! up, are known. Either way they are given up as soon as the master can be
//! reached, so that no key stays busy and no space stays taken until the
//! reservation's deadline.

use std::sync::Arc;
use std::time::Duration;

use mooncake_wire::message::{Abort, PutStartReply, Request, reply, request};
use parking_lot::Mutex;

use crate::control::Control;
use crate::error::Cause;
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
    waiting: Vec<(Arc<Session>, Orphan)>,
    running: bool,
}

#[derive(Debug, Clone)]
enum Orphan {
    /// A `PutStart` without an answer.
    Unanswered(Box<Request>),
    /// Placements. What was committed meanwhile stays: the master gives up only what is unfinished.
    Known(Abort),
}

impl Orphans {
    /// Takes charge of a `PutStart` without an answer.
    pub fn add(&self, control: &Arc<Control>, session: Arc<Session>, mut request: Request) {
        if let Some(request::Body::PutStart(start)) = &mut request.body {
            start.wait = false;
        }
        let sequence = request.sequence;
        if !self.push(control, session, Orphan::Unanswered(Box::new(request))) {
            control.sequences.answered(sequence);
        }
    }

    /// Takes charge of placements that the master could not be told to give up, or to end. `settled`: nothing of this
    /// client touches any copy of them again.
    pub fn give_up(&self, control: &Arc<Control>, session: &Arc<Session>, rids: Vec<u64>, settled: bool) {
        // Those of an earlier session ended with it.
        if !rids.is_empty() && control.session().is(session) {
            self.push(control, session.clone(), Orphan::Known(Abort { rids, writer_done: settled }));
        }
    }

    fn push(&self, control: &Arc<Control>, session: Arc<Session>, orphan: Orphan) -> bool {
        let mut state = self.state.lock();
        if state.waiting.len() >= MAX_ORPHANS {
            return false;
        }
        state.waiting.push((session, orphan));
        if !state.running {
            let control = control.clone();
            let thread = std::thread::Builder::new().name("mooncake-orphans".into());
            state.running = mooncake_transfer::thread::start(thread, move || run(&control)).is_ok();
        }
        true
    }

    fn next(&self) -> Option<(Arc<Session>, Orphan)> {
        let mut state = self.state.lock();
        let next = state.waiting.first().cloned();
        state.running = next.is_some();
        next
    }

    /// The first one is through, but for `rest`.
    fn settled(&self, control: &Control, rest: Option<Abort>) {
        let mut state = self.state.lock();
        let Some((_, first)) = state.waiting.first_mut() else { return };
        if let Orphan::Unanswered(request) = first {
            control.sequences.answered(request.sequence);
        }
        match rest {
            Some(abort) => *first = Orphan::Known(abort),
            None => drop(state.waiting.remove(0)),
        }
    }
}

fn run(control: &Arc<Control>) {
    while let Some((session, orphan)) = control.orphans.next() {
        if control.is_stopped() || !control.session().is(&session) {
            control.orphans.settled(control, None);
            continue;
        }
        match orphan {
            Orphan::Unanswered(request) => match control.repeat(&session, &request, control.lookup_timeout) {
                Some(Ok(answer)) => control.orphans.settled(control, placed(answer.body)),
                Some(Err(_)) => control.orphans.settled(control, None),
                None => std::thread::sleep(PAUSE),
            },
            Orphan::Known(abort) => {
                let body = request::Body::Abort(abort);
                let told = control.finish_in(&session, "give up a put", body, control.lookup_timeout);
                let is_final = |cause: &Cause| matches!(cause, Cause::Refused { .. } | Cause::BadRequest { .. });
                match told {
                    Err(error) if !is_final(error.cause()) => std::thread::sleep(PAUSE),
                    _ => control.orphans.settled(control, None),
                }
            }
        }
    }
}

/// What a put was given: nobody has begun to write there.
fn placed(answer: reply::Body) -> Option<Abort> {
    let reply::Body::PutStart(PutStartReply { slots }) = answer else { return None };
    let rids: Vec<u64> = slots.iter().flat_map(|slot| &slot.replicas).map(|replica| replica.rid).collect();
    (!rids.is_empty()).then_some(Abort { rids, writer_done: true })
}

#[cfg(test)]
mod tests {
    use mooncake_wire::message::{HelloReply, LogPosition};

    use super::*;
    use crate::connection::Address;
    use crate::master_address::MasterAddress;
    use crate::options::StoreOptions;

    /// Of session 7 with this secret: its number is what each log begins with.
    fn session(secret: u64) -> Session {
        let reply = HelloReply { session: 7, secret, ..HelloReply::default() };
        Session::new(&reply, Address::Tcp(([127, 0, 0, 1], 1).into()), None, &[0; 16])
    }

    fn control() -> Arc<Control> {
        let options = StoreOptions::new("127.0.0.1", "127.0.0.1:1");
        let masters = MasterAddress::parse(&options.master).unwrap();
        Arc::new(Control::new(&options, masters, session(1), LogPosition::default()).unwrap())
    }

    #[test]
    fn placements_of_an_earlier_session_of_the_same_number_are_not_given_up_in_this_one() {
        let control = control();
        // No thread: what is left waiting is what would be sent.
        control.orphans.state.lock().running = true;
        let former = control.session();
        control.orphans.give_up(&control, &former, vec![9], true);
        assert_eq!(control.orphans.state.lock().waiting.len(), 1);
        control.set_session(session(2));
        control.orphans.give_up(&control, &former, vec![11], true);
        let waiting = std::mem::take(&mut control.orphans.state.lock().waiting);
        assert_eq!(waiting.len(), 1, "{waiting:?}");
        assert!(waiting[0].0.is(&former), "and what waits stays with the session that it is of");

        control.set_session(session(1));
        control.orphans.give_up(&control, &former, vec![13], true);
        assert_eq!(control.orphans.state.lock().waiting.len(), 1, "the same one, with another process");
        control.stop();
    }
}
