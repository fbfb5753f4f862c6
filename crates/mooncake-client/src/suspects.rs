//! The thread that reports bad replicas, many with one message: [`crate::machine::suspects`]. It lives only while there are
//! any. Where the read did not look the key up a second time, the thread does.

use std::sync::Arc;

use mooncake_wire::message::{BadReplica, Lookup, reply, request};
use mooncake_wire::pack_keys;

use crate::control::Control;
use crate::error::StoreError;
use crate::machine::rounds::rounds;
use crate::machine::suspects::Suspect;

/// Replicas in one message; a master takes no more.
const ROUND: usize = 1_024;

/// Has a replica reported.
pub(crate) fn add(control: &Arc<Control>, suspect: Suspect) {
    let mut suspects = control.suspects.lock();
    // Also where there was no thread to be had for an earlier report.
    if suspects.add(control.now(), suspect) && !suspects.is_running() {
        let control = control.clone();
        let thread = std::thread::Builder::new().name("mooncake-suspects".into());
        suspects.set_running(mooncake_transfer::thread::start(thread, move || run(&control)).is_ok());
    }
}

fn run(control: &Arc<Control>) {
    loop {
        let all = control.suspects.lock().take(control.now());
        if all.is_empty() {
            return;
        }
        for round in rounds(&all, ROUND) {
            if control.is_stopped() {
                continue;
            }
            if let Err(error) = report(control, round) {
                tracing::debug!(%error, "bad replicas not reported");
                control.suspects.lock().forget(round);
            }
        }
    }
}

fn report(control: &Arc<Control>, suspects: &[Suspect]) -> Result<(), StoreError> {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use mooncake_wire::message::{LookupReply, Object, Replica};

    use super::*;
    use crate::scripted_master::{Client, answer, usual, wait_for};

    fn suspect(rid: u64, confirmed: bool) -> Suspect {
        Suspect { key: b"key".to_vec(), rid, reason: "bad".into(), confirmed }
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
        add(control, suspect(2, true));
        wait_for("the report is given up", || !control.suspects.lock().is_running());
        is_deaf.store(false, Ordering::SeqCst);
        control.reach.pong(control.now());
        let before = reported(&client).len();
        // The time in which the same one is not reported again is long enough not to have passed.
        assert!(control.suspects.lock().add(control.now(), suspect(2, true)), "it is taken");
        add(control, suspect(4, true));
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
                Some(answer(request, reply::Body::Lookup(LookupReply { objects })))
            }
            _ => Some(usual(request)),
        });
        let both = [suspect(2, false), suspect(4, false)];
        report(control, &both).unwrap();
        assert_eq!(reported(&client), [4]);
        report(control, &both[..1]).unwrap();
        assert_eq!(reported(&client), [4], "none is no message");
    }
}
