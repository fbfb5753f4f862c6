//! What a master says of itself to one that asks for nothing else.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mooncake_net::join_host_port;
use mooncake_os::{Deadline, ProcessIdentity};
use mooncake_wire::message::{AskIdentity, HelloReply, LogPosition, hello, refusal};

use crate::discovery::masters::MasterAddress;
use crate::error::{Cause, StoreError};
use crate::machine::session::{RECONNECT, TRY};
use crate::session::opening::{Unreached, open_at};

/// Of the number that a master's process has for itself.
const INSTANCE_BYTES: usize = 16;

/// Where the pages of a master are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MasterPages {
    /// `host:port`, as they are reached from here.
    At(String),
    /// On an address that leads from here to this host, and not to the master's.
    OnItsHostAlone(String),
    /// It does not say, being an older one.
    Untold,
}

/// A master, as it introduces itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasterInfo {
    /// What it is, and of which version.
    pub software: String,
    /// The pool's name for itself; empty: it does not say.
    pub cluster_id: String,
    /// Random, of this process of it.
    pub instance: String,
    /// Where its pages are.
    pub pages: MasterPages,
    /// It runs on this host, on the same kernel.
    pub is_on_this_host: bool,
    /// How long connecting and its answer took.
    pub took: Duration,
}

impl MasterInfo {
    /// Asks the master at `host:port`. No session begins.
    ///
    /// # Errors
    /// The address is no `host:port`, nobody answers there within a few seconds, or what answers is no master.
    pub fn ask(master: &str) -> Result<MasterInfo, StoreError> {
        let masters = MasterAddress::parse(master)?.alone()?;
        let began = Instant::now();
        loop {
            let tried = Instant::now();
            let deadline = Deadline::after(TRY, &|| false);
            let role = hello::Role::Ask(AskIdentity {});
            let reason = match open_at(&masters, 0, role, LogPosition::default(), &deadline) {
                Ok(opened) => match introduces(&opened.reply) {
                    Ok(()) => return Ok(MasterInfo::of(&opened.reply, &masters, tried.elapsed())),
                    Err(reason) => reason,
                },
                Err(Unreached::NoMaster(error)) => return Err(error),
                // A master with too many connections that have not identified themselves yet ends the oldest.
                Err(Unreached::Cut(_)) if began.elapsed() < TRY => {
                    std::thread::sleep(RECONNECT);
                    continue;
                }
                Err(unreached) => unreached.to_string(),
            };
            return Err(Cause::MasterUnreachable { master: masters.to_string(), reason }.into());
        }
    }

    fn of(reply: &HelloReply, masters: &MasterAddress, took: Duration) -> MasterInfo {
        let host = masters.host(0);
        let boot_id = ProcessIdentity::current().map(|process| process.boot_id);
        let is_on_this_host = boot_id.is_ok_and(|boot_id| boot_id[..] == reply.boot_id[..]);
        let pages = match reply.pages.parse::<SocketAddr>() {
            Err(_) => MasterPages::Untold,
            Ok(pages) if pages.ip().is_unspecified() => MasterPages::At(join_host_port(host, pages.port())),
            Ok(pages) if pages.ip().is_loopback() && !is_on_this_host => MasterPages::OnItsHostAlone(pages.to_string()),
            Ok(pages) => MasterPages::At(pages.to_string()),
        };
        MasterInfo {
            instance: mooncake_os::hex(&reply.instance),
            software: reply.software.clone(),
            cluster_id: reply.cluster_id.clone(),
            pages,
            is_on_this_host,
            took,
        }
    }
}

/// Whether a reply says what a master is, or why it does not.
fn introduces(reply: &HelloReply) -> Result<(), String> {
    match &reply.refusal {
        _ if reply.instance.len() != INSTANCE_BYTES => Err("what answers is no master".to_owned()),
        // An older master knows no such role, and refuses it, as one of another version would: all else is in its
        // answer.
        None => Ok(()),
        Some(refusal) if matches!(refusal.kind(), refusal::Kind::BadRequest | refusal::Kind::Version) => Ok(()),
        Some(refusal) => Err(refusal.reason.clone()),
    }
}

#[cfg(test)]
mod tests {
    use mooncake_wire::message::Refusal;

    use super::*;

    #[test]
    fn a_master_that_knows_no_such_question_has_answered_it_and_what_is_no_master_has_not() {
        let reply = |refusal: Option<refusal::Kind>| HelloReply {
            instance: vec![1; INSTANCE_BYTES].into(),
            refusal: refusal.map(|kind| Refusal { kind: kind.into(), reason: "no".into() }),
            ..HelloReply::default()
        };
        assert_eq!(introduces(&reply(None)), Ok(()));
        assert_eq!(introduces(&reply(Some(refusal::Kind::BadRequest))), Ok(()));
        assert_eq!(introduces(&reply(Some(refusal::Kind::Token))), Err("no".to_owned()));
        assert!(introduces(&HelloReply::default()).is_err());
    }

    #[test]
    fn pages_are_where_they_are_reached_from_here() {
        let masters = MasterAddress::parse("h7:50051").unwrap();
        let own = ProcessIdentity::current().unwrap().boot_id.to_vec();
        let pages = |pages: &str, boot_id: &[u8]| {
            let boot_id = boot_id.to_vec().into();
            let reply = HelloReply { pages: pages.to_owned(), boot_id, ..HelloReply::default() };
            MasterInfo::of(&reply, &masters, Duration::ZERO).pages
        };
        let at = |address: &str| MasterPages::At(address.to_owned());
        assert_eq!(pages("0.0.0.0:9003", &[1; 16]), at("h7:9003"));
        assert_eq!(pages("[::]:9003", &[1; 16]), at("h7:9003"));
        assert_eq!(pages("10.0.0.5:9004", &[1; 16]), at("10.0.0.5:9004"));
        assert_eq!(pages("127.0.0.1:9004", &own), at("127.0.0.1:9004"));
        let elsewhere = MasterPages::OnItsHostAlone("127.0.0.1:9004".to_owned());
        assert_eq!(pages("127.0.0.1:9004", &[1; 16]), elsewhere, "here that is another master, if any");
        assert_eq!(pages("", &own), MasterPages::Untold);
    }
}
