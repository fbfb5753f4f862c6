//! Where the master's log lies, whether it can be written there, and what room is left.

use std::fs;
use std::path::{Path, PathBuf};

use mooncake_master::state_folder;

use super::answer::Answer;
use super::finding::{Area, Finding, Findings};
use super::pool::Pool;
use super::segments::space;
use crate::terminal::bytes;

/// With less a log is lost soon.
const NO_ROOM: u64 = 64 << 20;

/// With less a pool that grows may lose it.
const LITTLE_ROOM: u64 = 1 << 30;

/// A snapshot is written beside the log that it replaces.
const LOGS: u64 = 3;

/// What was read of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Looked {
    /// It is there; else the room is that of the folder in which it would be made.
    pub is_there: bool,
    /// Free bytes and all bytes of its file system, or why it cannot be written.
    pub space: Result<(u64, u64), String>,
}

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// The folder of the master's log, or, where that is not known, the one that a master of this user would have.
    pub folder: Option<PathBuf>,
    /// It is the running master's.
    pub is_masters: bool,
    /// That folder; none: its disk does not answer.
    pub looked: Option<Looked>,
}

impl State {
    /// Reads it.
    pub fn read(pool: &Pool) -> State {
        let default = state_folder(|name| std::env::var(name).ok());
        let pid = pool.status().and_then(|status| status["pid"].as_u64());
        let of_master = pid.filter(|_| pool.is_on_this_host() == Some(true)).and_then(folder_of);
        let (is_masters, folder) = (of_master.is_some(), of_master.or(default));
        let looked_at = folder.clone();
        let looked = Answer::of(move || looked_at.map(|folder| look(&folder)));
        State { folder, is_masters, looked: looked.wait().flatten() }
    }
}

/// The folder whose log a process has open.
fn folder_of(pid: u64) -> Option<PathBuf> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let paths = open.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    let folder = |path: PathBuf| {
        let current = path.parent().filter(|folder| folder.file_name().is_some_and(|name| name == "current"))?;
        let is_log = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("log-"));
        current.parent().filter(|_| is_log).map(Path::to_owned)
    };
    paths.filter_map(folder).next()
}

fn look(folder: &Path) -> Looked {
    let there = folder.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(Path::new("/"));
    let space = match there.is_dir() {
        true => space(there).map_err(|why| format!("{}: {why}", there.display())),
        false => Err(format!("{} is no folder", there.display())),
    };
    Looked { is_there: folder == there, space }
}

/// Judges it.
pub fn judge(read: &State, pool: &Pool) -> Vec<Finding> {
    let mut found = Findings::of(Area::State);
    folder(read, pool, &mut found);
    found.sorted()
}

fn folder(read: &State, pool: &Pool, found: &mut Findings) {
    let remedy = "MOONCAKE_STATE_DIR=FOLDER or --wal_dir=FOLDER, one that the master's user may write to";
    if pool.is_on_this_host() == Some(false) {
        return found.skip("folder", "the master's log lies on another host: run mooncake doctor there for its disk");
    }
    if pool.is_on_this_host() == Some(true) && !read.is_masters {
        return found.skip(
            "folder",
            "no log of the master is seen open: it keeps none, or this user may not look (ask as its user)",
        );
    }
    let Some(folder) = &read.folder else {
        return found.warn(
            "folder",
            "a master of this user keeps no log: no HOME, MOONCAKE_STATE_DIR nor XDG_STATE_HOME is set",
            remedy,
        );
    };
    let whose = if read.is_masters { "the master's log lies in" } else { "a master of this user has its log in" };
    let whose = format!("{whose} {}", folder.display());
    let Some(looked) = &read.looked else {
        return found.warn("folder", format!("{whose}, whose disk does not answer"), remedy);
    };
    let (free, total) = match &looked.space {
        Ok(space) => *space,
        Err(why) => return found.warn("folder", format!("{whose}, which cannot be written: {why}"), remedy),
    };
    let missing = if looked.is_there { "" } else { ", which is made when it starts" };
    let message = format!("{whose}{missing}; {} of {} are free there", bytes(free as f64), bytes(total as f64));
    let held = pool.status().and_then(|status| status["log"]["bytes"].as_u64()).unwrap_or(0);
    let remedy = "make room there, or mooncake_master --wal_dir=FOLDER of a disk of its own; mooncake state gc";
    match free {
        free if free < NO_ROOM && read.is_masters => found.error("folder", message, remedy),
        free if free < LITTLE_ROOM.max(LOGS.saturating_mul(held)) => found.warn("folder", message, remedy),
        _ => found.ok("folder", message),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::doctor::broken;
    use crate::doctor::finding::{Severity, told};
    use crate::doctor::pool::{NoMaster, NoPages, Unanswered};

    fn well() -> State {
        let looked = Looked { is_there: true, space: Ok((50 << 30, 100 << 30)) };
        State { folder: Some("/var/lib/mooncake".into()), is_masters: true, looked: Some(looked) }
    }

    fn judged(read: &State) -> Vec<Finding> {
        judge(read, &broken::pool(broken::status()))
    }

    fn without_a_master(read: State) -> Vec<Finding> {
        let master = Err(Unanswered { message: String::new(), kind: NoMaster::Silence });
        let read = State { is_masters: false, ..read };
        judge(&read, &Pool { master, pages: Err(NoPages::NoMaster), ..broken::pool(broken::status()) })
    }

    fn with_space(space: Result<(u64, u64), String>) -> State {
        State { looked: Some(Looked { is_there: false, space }), ..well() }
    }

    #[test]
    fn a_log_with_room_is_well() {
        let found = judged(&well());
        assert!(found.iter().all(|finding| finding.severity == Severity::Ok), "{found:#?}");
        told::is(&found, "folder", Severity::Ok, &["the master's log lies in /var/lib/mooncake; 50.0 GB of 100 GB"]);
    }

    #[test]
    fn a_folder_that_cannot_be_used_says_why_and_what_to_use() {
        let remedy = "MOONCAKE_STATE_DIR=FOLDER";
        let none = State { folder: None, ..well() };
        told::is(&without_a_master(none), "folder", Severity::Warning, &["no HOME", remedy]);
        let slow = State { looked: None, ..well() };
        told::is(&without_a_master(slow), "folder", Severity::Warning, &["does not answer"]);
        let refused = with_space(Err("/var/lib: Read-only file system".to_owned()));
        told::is(&without_a_master(refused), "folder", Severity::Warning, &["Read-only file system", remedy]);
        let unseen = State { is_masters: false, ..well() };
        told::is(&judged(&unseen), "folder", Severity::Skipped, &["as its user"]);
    }

    #[test]
    fn little_room_is_told_before_the_log_is_lost() {
        let scarce = with_space(Ok((1 << 20, 1 << 30)));
        told::is(&judged(&scarce), "folder", Severity::Error, &["1.0 MB of 1.0 GB"]);
        told::is(&without_a_master(scarce), "folder", Severity::Warning, &["made when it starts"]);
        let mut status = broken::status();
        status["log"]["bytes"] = json!(20_u64 << 30);
        told::is(&judge(&well(), &broken::pool(status)), "folder", Severity::Warning, &["50.0 GB"]);
        let mut elsewhere = broken::pool(broken::status());
        elsewhere.master.as_mut().unwrap().is_on_this_host = false;
        told::is(&judge(&well(), &elsewhere), "folder", Severity::Skipped, &["another host"]);
    }

    #[test]
    fn a_folder_is_looked_at_where_it_is_or_where_it_would_be() {
        let scratch = tempfile::tempdir().unwrap();
        let below = scratch.path().join("a/b");
        let looked = look(&below);
        assert!(!looked.is_there && looked.space.is_ok() && look(scratch.path()).is_there);
        fs::write(scratch.path().join("a"), "").unwrap();
        assert!(look(&below).space.unwrap_err().ends_with("/a is no folder"));
    }

    #[test]
    fn the_folder_of_a_log_that_is_open_is_found() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().canonicalize().unwrap().join("pool-1");
        fs::create_dir_all(folder.join("current")).unwrap();
        let _open = fs::File::create(folder.join("current/log-1.wal")).unwrap();
        assert_eq!(folder_of(std::process::id().into()), Some(folder));
    }
}
