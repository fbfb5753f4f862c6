//! The thread that reports bad replicas, many with one message: [`crate::machine::suspects`]. It lives only while there are
//! any. Where the read did not look the key up a second time, the thread does.

use std::sync::Arc;

use mooncake_wire::message::{BadReplica, Lookup, reply, request};
use mooncake_wire::pack_keys;

use crate::control::Control;
use crate::error::StoreError;
use crate::machine::suspects::Suspect;
use crate::rounds::rounds;

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
