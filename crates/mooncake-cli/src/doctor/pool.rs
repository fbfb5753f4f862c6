//! What a master and its pages say of a pool, read in a few seconds or not at all.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mooncake_client::{Cause, MasterInfo, StoreError};
use mooncake_settings::Given;
use serde_json::Value;

use super::answer::{Answer, LIMIT};
use super::member::{Host, Member, members, resolve};
use crate::pool::pages::{self, PagesError, master};
use crate::pool::status;
use crate::terminal::duration;

/// A round trip is the least of so many: the first one may wake a thread, or fill a cache.
const TRIES: usize = 3;

/// Longest wait for its pages, which are asked once the control port has answered, or has not.
const PAGES_LIMIT: Duration = Duration::from_millis(4_500);

/// Why a master does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unanswered {
    /// What it says.
    pub message: String,
    /// What it is.
    pub kind: NoMaster,
}

/// Kinds of what is no master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoMaster {
    /// The master's HTTP port, or another one of HTTP.
    Http,
    /// The data port of a storage node, or of another store.
    Owner,
    /// The service port of a storage node, and its master, if it says so.
    Node(Option<String>),
    /// The address is none.
    Address,
    /// The name has no address here.
    Name,
    /// It does not come.
    Silence,
}

/// What the pages of a master say.
#[derive(Debug, Clone)]
pub struct Pages {
    /// `GET /status`.
    pub status: Value,
    /// This host's clock when it was asked for, Unix milliseconds.
    pub asked_ms: f64,
    /// How long the answer took.
    pub took: Duration,
}

/// Why there are no pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoPages {
    /// The master does not say where they are.
    NoMaster,
    /// They do not answer.
    Unreached(String),
    /// They are for its own host alone, as the master was told.
    Elsewhere(String),
    /// They answer with something else.
    Odd(String),
}

/// What was read.
#[derive(Debug, Clone)]
pub struct Pool {
    /// The control port that was asked.
    pub address: String,
    /// What answered there.
    pub master: Result<MasterInfo, Unanswered>,
    /// Its pages.
    pub pages: Result<Pages, NoPages>,
    /// Its clients.
    pub members: Vec<Member>,
}

impl Pool {
    /// Asks the master that the command line names, and its pages.
    pub fn read(given: &Given) -> Pool {
        let address = master(given);
        let (asked, flags) = (address.clone(), given.clone());
        let info = Answer::of(move || ask(&asked));
        let pages = Answer::of(move || read_pages(&flags));
        let late = || format!("master {address}: no answer within {}", duration(LIMIT.as_secs_f64()));
        let info = info.wait().unwrap_or_else(|| Err(Unanswered { message: late(), kind: NoMaster::Silence }));
        // A master that reads its log is silent first, and what says so are its pages.
        let pages = pages.wait_for(PAGES_LIMIT).unwrap_or_else(|| {
            Err(NoPages::Unreached(format!("no answer of its pages within {}", duration(PAGES_LIMIT.as_secs_f64()))))
        });
        let members = pages.as_ref().map_or(Vec::new(), |pages| members(&pages.status, &Host::this()));
        Pool { address, master: info, pages, members }
    }

    /// The status, where there is one.
    pub fn status(&self) -> Option<&Value> {
        self.pages.as_ref().ok().map(|pages| &pages.status)
    }

    /// Whether the master runs on this host; none: no master says so.
    pub fn is_on_this_host(&self) -> Option<bool> {
        self.master.as_ref().ok().map(|info| info.is_on_this_host)
    }

    /// The control port is silent because the master reads its log, as its pages say.
    pub fn is_recovering(&self) -> bool {
        let is_silent = self.master.as_ref().is_err_and(|unanswered| unanswered.kind == NoMaster::Silence);
        is_silent && self.status().is_some_and(|status| status["state"] == "recovering")
    }

    /// Members whose memory or tiers others read.
    pub fn lenders(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.lends)
    }
}

fn ask(address: &str) -> Result<MasterInfo, Unanswered> {
    let mut least: Option<MasterInfo> = None;
    for _ in 0..TRIES {
        let began = Instant::now();
        match MasterInfo::ask(address) {
            Ok(info) => least = Some(least.filter(|before| before.took <= info.took).unwrap_or(info)),
            Err(error) if least.is_none() => return Err(unanswered(address, &error)),
            Err(_) => break,
        }
        if began.elapsed() > LIMIT / 10 {
            break;
        }
    }
    least.ok_or_else(|| Unanswered { message: format!("master {address}: no answer"), kind: NoMaster::Silence })
}

fn unanswered(address: &str, error: &StoreError) -> Unanswered {
    let kind = match error.cause() {
        Cause::SpeaksHttp { .. } => NoMaster::Http,
        Cause::IsOwner { .. } => NoMaster::Owner,
        Cause::IsNode { master, .. } => NoMaster::Node(master.clone()),
        Cause::InvalidParams(_) | Cause::Unsupported(_) => NoMaster::Address,
        _ if resolve(address).is_empty() => NoMaster::Name,
        _ => NoMaster::Silence,
    };
    Unanswered { message: error.to_string(), kind }
}

fn read_pages(given: &Given) -> Result<Pages, NoPages> {
    let pages = pages::Pages::of(given).map_err(no_pages)?;
    let (began, asked) = (Instant::now(), SystemTime::now());
    let status = status::read(&pages).map_err(no_pages)?;
    let asked_ms = asked.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64() * 1e3);
    Ok(Pages { status, asked_ms, took: began.elapsed() })
}

fn no_pages(error: PagesError) -> NoPages {
    match error {
        PagesError::Master { .. } => NoPages::NoMaster,
        PagesError::Unreached { .. } => NoPages::Unreached(error.to_string()),
        PagesError::Elsewhere { .. } => NoPages::Elsewhere(error.to_string()),
        PagesError::Refused { .. } | PagesError::Odd { .. } | PagesError::Another { .. } => {
            NoPages::Odd(error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_master_is_told_apart() {
        let kind = |address: &str| unanswered(address, &MasterInfo::ask(address).unwrap_err()).kind;
        assert_eq!(kind("127.0.0.1:1"), NoMaster::Silence);
        assert_eq!(kind("nowhere.invalid:1"), NoMaster::Name);
        for none in ["nowhere", "", "etcd://10.0.0.1:2379"] {
            assert_eq!(kind(none), NoMaster::Address, "{none}");
        }
    }
}
