//! The thread that reports bad replicas: [`crate::machine::replica_reports`]. It lives only while there are any.

use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Duration;

use mooncake_wire::message::{BadReplica, Lookup, Object, reply, request};
use mooncake_wire::pack_keys;

use crate::error::StoreError;
use crate::machine::ready;
use crate::machine::replica_reports::{ReplicaReport, ReplicaReportDriver, ReplicaReports, run};
use crate::session::control::Control;

impl ReplicaReportDriver for Arc<Control> {
    fn now(&self) -> Duration {
        Control::now(self)
    }

    fn reports(&self) -> impl DerefMut<Target = ReplicaReports> {
        self.replica_reports.lock()
    }

    fn is_stopped(&self) -> bool {
        Control::is_stopped(self)
    }

    fn start_worker(&self) -> bool {
        let control = self.clone();
        let thread = std::thread::Builder::new().name("mooncake-suspects".into());
        mooncake_os::thread::start(thread, move || ready(run(&control))).is_ok()
    }

    async fn lookup(&self, keys: &[ReplicaReport]) -> Result<Vec<Object>, StoreError> {
        const WHAT: &str = "a lookup";
        let body = request::Body::Lookup(Lookup { keys: Some(pack_keys(keys)) });
        match self.query_on_any_thread(WHAT, body, self.lookup_timeout)?.body {
            reply::Body::Lookup(found) => Ok(found.objects),
            _ => Err(self.confused(WHAT)),
        }
    }

    async fn tell(&self, bad: BadReplica) -> Result<(), StoreError> {
        let body = request::Body::BadReplica(bad);
        self.query_on_any_thread("the report of bad replicas", body, self.lookup_timeout).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use mooncake_ids::Rid;
    use mooncake_wire::message::{LookupReply, Replica};

    use super::*;
    use crate::machine::replica_reports::{add, send};
    use crate::scripted_master::{Client, reply_to, usual, wait_for};

    fn report(rid: Rid, confirmed: bool) -> ReplicaReport {
        ReplicaReport { key: b"key".to_vec(), rid, reason: "bad".into(), confirmed }
    }

    fn reported(client: &Client) -> Vec<u64> {
        let bodies = client.master.asked().into_iter();
        let reports =
            bodies.filter_map(|body| if let request::Body::BadReplica(bad) = body { Some(bad) } else { None });
        reports
            .flat_map(|bad| [bad.rid].into_iter().chain(bad.more.iter().map(|bad| bad.rid)).collect::<Vec<_>>())
            .collect()
    }

    #[test]
    fn what_could_not_be_reported_is_reported_as_soon_as_a_read_finds_it_bad_again() {
        let (client, _, _opened, _caller) = Client::without_thread();
        let control = &client.shared.control;
        let is_deaf = Arc::new(AtomicBool::new(true));
        let deaf = is_deaf.clone();
        client.master.answers(move |request| (!deaf.load(Ordering::SeqCst)).then(|| usual(request)));
        add(control, report(Rid(2), true));
        wait_for("the report is given up", || !control.replica_reports.lock().running);
        is_deaf.store(false, Ordering::SeqCst);
        control.reachability.pong(control.now());
        let before = reported(&client).len();
        // The time in which the same one is not reported again is long enough not to have passed.
        assert!(control.replica_reports.lock().add(control.now(), report(Rid(2), true)), "it is taken");
        add(control, report(Rid(4), true));
        wait_for("a report", || reported(&client).len() >= before + 2);
        assert_eq!(reported(&client)[before..], [2, 4], "with one message");
    }

    #[test]
    fn of_those_that_nobody_looked_up_again_only_those_are_reported_that_the_master_still_names() {
        let (client, _, _opened, _caller) = Client::without_thread();
        let control = &client.shared.control;
        client.master.answers(|request| match &request.body {
            Some(request::Body::Lookup(_)) => {
                let replicas = vec![Replica { rid: 4, extents: Vec::new() }];
                let object = Object { replicas, ..Object::default() };
                let objects = vec![object.clone(), object];
                Some(reply_to(request, reply::Body::Lookup(LookupReply { objects, away: false })))
            }
            _ => Some(usual(request)),
        });
        let both = [report(Rid(2), false), report(Rid(4), false)];
        ready(send(control, &both)).unwrap();
        assert_eq!(reported(&client), [4]);
        ready(send(control, &both[..1])).unwrap();
        assert_eq!(reported(&client), [4], "none is no message");
    }
}
