//! The thread that gives up what calls have left behind: [`crate::machine::orphans`]. It lives only while there is any.

use std::sync::Arc;
use std::time::Duration;

use mooncake_wire::message::{Abort, Request, request};

use crate::control::Control;
use crate::error::Cause;
use crate::machine::orphans::{Orphan, Orphans, placed};
use crate::session::Session;

const PAUSE: Duration = Duration::from_millis(100);

/// Takes charge of a `PutStart` without an answer.
pub(crate) fn add(control: &Arc<Control>, session: Arc<Session>, request: Request) {
    let sequence = request.sequence;
    let mut orphans = control.orphans.lock();
    match orphans.add(session, request) {
        true => keep_running(control, &mut orphans),
        false => control.sequences.lock().answered(sequence),
    }
}

/// Takes charge of placements that the master could not be told to give up, or to end. `settled`: nothing of this
/// client touches any copy of them again.
pub(crate) fn give_up(control: &Arc<Control>, session: &Arc<Session>, rids: Vec<u64>, settled: bool) {
    // Those of an earlier session ended with it.
    if rids.is_empty() || !control.session().is(session) {
        return;
    }
    let mut orphans = control.orphans.lock();
    if orphans.give_up(session.clone(), rids, settled) {
        keep_running(control, &mut orphans);
    }
}

fn keep_running(control: &Arc<Control>, orphans: &mut Orphans<Arc<Session>>) {
    if !orphans.is_running() {
        let control = control.clone();
        let thread = std::thread::Builder::new().name("mooncake-orphans".into());
        orphans.set_running(mooncake_transfer::thread::start(thread, move || run(&control)).is_ok());
    }
}

fn run(control: &Arc<Control>) {
    while let Some((session, orphan)) = next(control) {
        if control.is_stopped() || !control.session().is(&session) {
            settled(control, None);
            continue;
        }
        match orphan {
            Orphan::Unanswered(request) => match control.repeat(&session, &request, control.lookup_timeout) {
                Some(Ok(answer)) => settled(control, placed(answer.body)),
                Some(Err(_)) => settled(control, None),
                None => std::thread::sleep(PAUSE),
            },
            Orphan::Known(abort) => {
                let body = request::Body::Abort(abort);
                let told = control.finish_in(&session, "give up a put", body, control.lookup_timeout);
                let is_final = |cause: &Cause| matches!(cause, Cause::Refused { .. } | Cause::BadRequest { .. });
                match told {
                    Err(error) if !is_final(error.cause()) => std::thread::sleep(PAUSE),
                    _ => settled(control, None),
                }
            }
        }
    }
}

fn next(control: &Control) -> Option<(Arc<Session>, Orphan)> {
    control.orphans.lock().first()
}

fn settled(control: &Control, rest: Option<Abort>) {
    if let Some(sequence) = control.orphans.lock().settled(rest) {
        control.sequences.lock().answered(sequence);
    }
}

#[cfg(test)]
mod tests {
    use mooncake_wire::message::HelloReply;

    use super::*;
    use crate::connection::Address;

    /// Of session 7 with this secret: its number is what each log begins with.
    fn session(secret: u64) -> Session {
        let reply = HelloReply { session: 7, secret, ..HelloReply::default() };
        Session::new(&reply, Address::Tcp(([127, 0, 0, 1], 1).into()), None, &[0; 16])
    }

    #[test]
    fn placements_of_an_earlier_session_of_the_same_number_are_not_given_up_in_this_one() {
        let control = Control::alone();
        control.set_session(session(1));
        // No thread: what is left waiting is what would be sent.
        control.orphans.lock().set_running(true);
        let former = control.session();
        give_up(&control, &former, vec![9], true);
        assert!(next(&control).is_some());
        control.set_session(session(2));
        give_up(&control, &former, vec![11], true);
        let (waits, _) = next(&control).unwrap();
        assert!(waits.is(&former), "and what waits stays with the session that it is of");
        settled(&control, None);
        assert!(next(&control).is_none(), "it is alone");

        control.set_session(session(1));
        give_up(&control, &former, vec![13], true);
        assert!(next(&control).is_some(), "the same one, with another process");
        control.stop();
    }
}
