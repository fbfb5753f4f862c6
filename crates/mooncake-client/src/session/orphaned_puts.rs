//! The thread that aborts what calls have left behind: [`crate::machine::orphans`]. It lives only while there is any.

use std::ops::DerefMut;
use std::sync::Arc;

use crate::machine::call::CallDriver;
use crate::machine::orphans::{OrphanDriver, OrphanedPuts, run};
use crate::machine::ready;
use crate::machine::sequences::Sequences;
use crate::session::Session;
use crate::session::caller::Caller;
use crate::session::control::Control;

impl OrphanDriver for Arc<Control> {
    type Session = Arc<Session>;

    fn orphans(&self) -> impl DerefMut<Target = OrphanedPuts<Arc<Session>>> {
        self.orphans.lock()
    }

    fn sequences(&self) -> impl DerefMut<Target = Sequences> {
        self.sequences.lock()
    }

    fn is_current(&self, session: &Arc<Session>) -> bool {
        self.session().is(session)
    }

    fn start_worker(&self) -> bool {
        let control = self.clone();
        let thread = std::thread::Builder::new().name("mooncake-orphans".into());
        mooncake_os::thread::start(thread, move || ready(run(&control))).is_ok()
    }

    fn call(&self) -> impl CallDriver<Session = Arc<Session>> {
        Caller::new(self, self.lookup_timeout)
    }
}

#[cfg(test)]
mod tests {
    use mooncake_ids::Rid;
    use mooncake_wire::message::HelloReply;

    use super::*;
    use crate::machine::orphans::abort;
    use crate::session::connection::Address;

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
        control.orphans.lock().running = true;
        let former = control.session();
        abort(&control, &former, vec![Rid(9)], true);
        assert!(control.orphans.lock().first().is_some());
        control.set_session(session(2));
        abort(&control, &former, vec![Rid(11)], true);
        let (waits, _) = control.orphans.lock().first().unwrap();
        assert!(waits.is(&former), "and what waits stays with the session that it is of");
        control.orphans.lock().done(None);
        assert!(control.orphans.lock().first().is_none(), "it is alone");

        control.set_session(session(1));
        abort(&control, &former, vec![Rid(13)], true);
        assert!(control.orphans.lock().first().is_some(), "the same one, with another process");
        control.stop();
    }
}
