//! What is there, and away with it.

use std::time::Duration;

use mooncake_wire::message::{
    ClearReplicas, Exists, ExistsReply, Keys, Ping, Remove, RemoveAll, RemoveByRegex, remove_reply, reply, request,
};
use mooncake_wire::pack_keys;

use crate::error::{Cause, StoreError};
use crate::inner::Inner;
use crate::key::check_key;
use crate::machine::call::IfUnanswered;
use crate::machine::rounds::{REMOVED_KEYS, rounds};

/// Keys asked about with one request.
const ROUND_KEYS: usize = 65_536;

/// A `remove_all` looks at every object; the master's pongs say that it gets on.
const REMOVE_ALL: Duration = Duration::from_secs(60);

/// Why something is missing that is stored.
pub(crate) const OWNER_AWAY: &str =
    "it is stored, but its owner is away: it does not answer at the moment, or has just ended";

/// What became of a remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoveOutcome {
    /// Unlinked; its readers read on.
    Removed,
    /// Was not there.
    Missing,
    /// Looked up a moment ago, and `force` was not given.
    Protected,
    /// A put of it is under way.
    Busy,
}

impl Inner {
    /// Asks about the keys that an object can have; the others are not there.
    pub(crate) fn exists<T: Clone>(
        &self,
        keys: &[impl AsRef<[u8]>],
        sizes: bool,
        absent: T,
        found: impl Fn(&ExistsReply, usize) -> T,
    ) -> Result<Vec<T>, StoreError> {
        let mut results = Vec::with_capacity(keys.len());
        for round in rounds(keys, ROUND_KEYS) {
            if round.iter().all(|key| check_key(key.as_ref()).is_ok()) {
                let reply = self.ask(pack_keys(round), round.len(), sizes)?;
                results.extend((0..round.len()).map(|index| found(&reply, index)));
                continue;
            }
            let valid: Vec<&[u8]> = round.iter().map(AsRef::as_ref).filter(|key| check_key(key).is_ok()).collect();
            let reply = match valid.is_empty() {
                true => ExistsReply::default(),
                false => self.ask(pack_keys(&valid), valid.len(), sizes)?,
            };
            let mut next = 0;
            for key in round {
                if check_key(key.as_ref()).is_err() {
                    results.push(absent.clone());
                    continue;
                }
                results.push(found(&reply, next));
                next += 1;
            }
        }
        Ok(results)
    }

    fn ask(&self, keys: Keys, count: usize, sizes: bool) -> Result<ExistsReply, StoreError> {
        const WHAT: &str = "an existence query";
        let control = &self.shared.control;
        let body = request::Body::Exists(Exists { keys: Some(keys), sizes });
        match control.query(WHAT, body, control.lookup_timeout)?.body {
            reply::Body::Exists(reply) if reply.found.len() == count && (!sizes || reply.sizes.len() == count) => {
                if reply.away {
                    self.keep_miss(OWNER_AWAY.to_owned());
                }
                Ok(reply)
            }
            _ => Err(control.confused(WHAT)),
        }
    }

    pub(crate) fn remove(&self, keys: &[impl AsRef<[u8]>], force: bool) -> Result<Vec<RemoveOutcome>, StoreError> {
        self.remove_by("a remove", keys, |keys| request::Body::Remove(Remove { keys: Some(keys), force }))
    }

    pub(crate) fn clear_replicas(
        &self,
        keys: &[impl AsRef<[u8]>],
        segment: &str,
    ) -> Result<Vec<RemoveOutcome>, StoreError> {
        self.remove_by("clearing replicas", keys, |keys| {
            request::Body::ClearReplicas(ClearReplicas { keys: Some(keys), segment: segment.to_owned() })
        })
    }

    fn remove_by(
        &self,
        what: &'static str,
        keys: &[impl AsRef<[u8]>],
        ask: impl Fn(Keys) -> request::Body,
    ) -> Result<Vec<RemoveOutcome>, StoreError> {
        let control = &self.shared.control;
        let mut results = Vec::with_capacity(keys.len());
        for round in rounds(keys, REMOVED_KEYS) {
            let valid: Vec<&[u8]> = round.iter().map(AsRef::as_ref).filter(|key| check_key(key).is_ok()).collect();
            let mut outcomes = Vec::new();
            if !valid.is_empty() {
                let body = ask(pack_keys(&valid));
                outcomes = match control.mutate(what, body, control.lookup_timeout * 2, IfUnanswered::Stays)?.body {
                    reply::Body::Remove(reply) if reply.outcomes.len() == valid.len() => reply.outcomes,
                    _ => return Err(control.confused(what)),
                };
            }
            let mut outcomes = outcomes.into_iter();
            for key in round {
                let outcome = match check_key(key.as_ref()) {
                    Ok(()) => outcomes.next().and_then(|outcome| remove_reply::Outcome::try_from(outcome).ok()),
                    Err(_) => Some(remove_reply::Outcome::Missing),
                };
                results.push(match outcome {
                    Some(remove_reply::Outcome::Removed) => RemoveOutcome::Removed,
                    Some(remove_reply::Outcome::Missing) => RemoveOutcome::Missing,
                    Some(remove_reply::Outcome::Protected) => RemoveOutcome::Protected,
                    Some(remove_reply::Outcome::Busy) => RemoveOutcome::Busy,
                    Some(remove_reply::Outcome::Unspecified) | None => return Err(control.confused(what)),
                });
            }
        }
        Ok(results)
    }

    pub(crate) fn remove_all(&self, force: bool) -> Result<u64, StoreError> {
        const WHAT: &str = "remove_all";
        let control = &self.shared.control;
        let body = request::Body::RemoveAll(RemoveAll { force });
        match control.mutate(WHAT, body, REMOVE_ALL, IfUnanswered::Stays)?.body {
            reply::Body::RemoveAll(reply) => Ok(reply.removed),
            _ => Err(control.confused(WHAT)),
        }
    }

    pub(crate) fn remove_by_regex(&self, pattern: &str, force: bool) -> Result<u64, StoreError> {
        const WHAT: &str = "remove_by_regex";
        let control = &self.shared.control;
        let body = request::Body::RemoveByRegex(RemoveByRegex { pattern: pattern.to_owned(), force });
        let reply =
            control.mutate(WHAT, body, REMOVE_ALL, IfUnanswered::Stays).map_err(|error| match error.cause() {
                Cause::BadRequest { reason, .. } => {
                    Cause::BadPattern { pattern: pattern.to_owned(), reason: reason.clone() }.into()
                }
                _ => error,
            })?;
        match reply.body {
            reply::Body::RemoveAll(reply) => Ok(reply.removed),
            _ => Err(control.confused(WHAT)),
        }
    }

    pub(crate) fn ping(&self) -> Result<(), StoreError> {
        let control = &self.shared.control;
        control.query("a ping", request::Body::Ping(Ping {}), control.lookup_timeout).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use mooncake_wire::message::RemoveReply;
    use mooncake_wire::unpack_keys;

    use super::*;
    use crate::scripted_master::{Master, reply_to, usual};

    #[test]
    fn what_is_asked_in_rounds_is_answered_key_by_key() {
        let (master, keys) = (Master::start(), rounds_of_keys());
        let (store, _caller) = master.store(|_| {});
        master.answers(|request| {
            let there = |keys: &Option<Keys>| -> Vec<bool> {
                unpack_keys(keys).unwrap().map(|key| [&b"0"[..], b"last"].contains(&key)).collect()
            };
            Some(match &request.body {
                Some(request::Body::Exists(asked)) => {
                    let found: Vec<u8> = there(&asked.keys).into_iter().map(u8::from).collect();
                    reply_to(
                        request,
                        reply::Body::Exists(ExistsReply { found: found.into(), ..ExistsReply::default() }),
                    )
                }
                Some(request::Body::Remove(asked)) => {
                    let outcome = |there: bool| match there {
                        true => remove_reply::Outcome::Protected.into(),
                        false => remove_reply::Outcome::Missing.into(),
                    };
                    let outcomes = there(&asked.keys).into_iter().map(outcome).collect();
                    reply_to(request, reply::Body::Remove(RemoveReply { outcomes }))
                }
                _ => usual(request),
            })
        });
        let at = |is: &dyn Fn(usize) -> bool| (0..keys.len()).filter(|index| is(*index)).collect::<Vec<usize>>();
        let found = store.exists(&keys).unwrap();
        assert_eq!(at(&|index| found[index]), [0, keys.len() - 1]);
        let removed = store.remove(&keys, false).unwrap();
        assert_eq!(at(&|index| removed[index] == RemoveOutcome::Protected), [0, keys.len() - 1]);
        assert_eq!(master.asked().len(), 2 + (ROUND_KEYS + 1).div_ceil(REMOVED_KEYS), "in rounds");
    }

    /// More than are asked for at a time, two of them such as no object can have.
    fn rounds_of_keys() -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = (0..ROUND_KEYS).map(|index| index.to_string().into_bytes()).collect();
        keys[7].clear();
        keys.extend([Vec::new(), b"last".to_vec()]);
        keys
    }
}
