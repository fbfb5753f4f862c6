//! How many files and connections a store of this environment may have open, and how many this pool takes.

use mooncake_client::StoreOptions;
use mooncake_os::DESCRIPTORS_OF_OTHERS_MAX;
use rustix::process::Resource;

use super::finding::{Area, Finding, Findings};
use super::limits::Limit;
use super::member::Member;
use super::pool::Pool;
use crate::terminal::number;

/// A store takes so many descriptors of each segment that it maps, and one of others (docs/operations.md).
const OF_MAPPED: u64 = 5;

/// An engine has sockets and files of its own.
const OF_OTHERS: u64 = 256;

/// With fewer a pool that grows, or an engine with many connections, runs out of them.
const FEW: u64 = 4_096;

/// What was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptors {
    /// The limit of this process, and of those that are started as it was.
    pub limit: Limit,
    /// `MOONCAKE_RAISE_DESCRIPTORS` of this environment.
    pub raises: bool,
}

impl Descriptors {
    /// Reads it.
    pub fn read() -> Descriptors {
        // What is wrong with the variables is told of the installation.
        let raises = StoreOptions::new("", "").from_env().map_or(true, |options| options.raise_descriptors);
        Descriptors { limit: Limit::of(Resource::Nofile), raises }
    }
}

/// Judges it.
pub fn judge(read: &Descriptors, pool: &Pool) -> Vec<Finding> {
    let mut found = Findings::of(Area::Limits);
    let count = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |limit| number(limit as f64));
    let most = DESCRIPTORS_OF_OTHERS_MAX as u64;
    let raised = read.limit.hard.map_or(most, |hard| hard.min(most)).max(read.limit.soft.unwrap_or(u64::MAX));
    let (has, how) = match read.raises {
        true => (raised, format!("stores raise theirs to {}", number(raised as f64))),
        false => (read.limit.soft.unwrap_or(u64::MAX), "MOONCAKE_RAISE_DESCRIPTORS=0 leaves it there".to_owned()),
    };
    let of = |member: &Member| member.segments.saturating_mul(if member.is_here { OF_MAPPED } else { 1 });
    let needed = pool.members.iter().map(of).fold(OF_OTHERS, u64::saturating_add);
    let message = format!(
        "open files: {}, at most {}; {how}, and a store in this pool may need {}",
        count(read.limit.soft),
        count(read.limit.hard),
        number(needed as f64)
    );
    let remedy = match read.raises {
        true => "ulimit -Hn 65536 (/etc/security/limits.conf), LimitNOFILE=65536 of the unit, --ulimit nofile=65536",
        false => "unset MOONCAKE_RAISE_DESCRIPTORS, or ulimit -n 65536 before the engine starts",
    };
    match has {
        has if has < needed => found.error("open_files", format!("{message}: calls will fail with -800"), remedy),
        has if has < FEW.max(needed.saturating_mul(2)) => found.warn("open_files", message, remedy),
        _ => found.ok("open_files", message),
    }
    found.sorted()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::doctor::broken;
    use crate::doctor::finding::{Severity, told};

    fn judged(read: &Descriptors) -> Vec<Finding> {
        judge(read, &broken::pool(broken::status()))
    }

    #[test]
    fn the_usual_limit_is_well_and_so_is_none() {
        let usual = Descriptors { limit: Limit { soft: Some(1_024), hard: Some(524_288) }, raises: true };
        let says = ["1,024, at most 524,288", "raise theirs to 65,536"];
        told::is(&judged(&usual), "open_files", Severity::Ok, &says);
        let none = Descriptors { limit: Limit { soft: None, hard: None }, raises: true };
        told::is(&judged(&none), "open_files", Severity::Ok, &["unlimited"]);
    }

    #[test]
    fn too_few_descriptors_for_the_pool_are_an_error_and_few_a_warning() {
        let with = |hard| Descriptors { limit: Limit { soft: Some(256), hard: Some(hard) }, raises: true };
        told::is(&judged(&with(256)), "open_files", Severity::Error, &["may need 261", "-800", "LimitNOFILE=65536"]);
        told::is(&judged(&with(1_500)), "open_files", Severity::Warning, &["at most 1,500"]);
        let mut status = broken::status();
        status["clients"][0]["segments"] = json!(2_000);
        let found = judge(&with(8_000), &broken::pool(status));
        told::is(&found, "open_files", Severity::Error, &["may need 10,256"]);
        let left = Descriptors { raises: false, limit: Limit { soft: Some(512), hard: None } };
        told::is(&judged(&left), "open_files", Severity::Warning, &["unset MOONCAKE_RAISE_DESCRIPTORS"]);
    }
}
