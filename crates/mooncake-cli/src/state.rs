//! `mooncake state ls` and `mooncake state gc`: what masters have left on this machine.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use mooncake_master::{LeftWitness, LogError, State, StateFolder, state_folder};
use mooncake_settings::{Given, STATE_GC, STATE_LS, SettingError};
use serde_json::{Value, json};

use crate::flags;
use crate::logging::say;

const USAGE: &str = "mooncake state ls lists what masters have left on this machine, mooncake state gc removes what is \
    not in use of that, by --older_than or --name; each has --help";

/// Why nothing is listed or removed.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The command line.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// Neither `ls` nor `gc`.
    #[error("mooncake state has no command {0:?}. {USAGE}")]
    Command(String),
    /// A word behind `help`.
    #[error("unexpected argument {0:?}. {USAGE}")]
    Stray(String),
    /// Nothing.
    #[error("{USAGE}")]
    NoCommand,
    /// No folder.
    #[error("there is no state folder: no HOME and none of MOONCAKE_STATE_DIR and XDG_STATE_HOME; see --state_dir")]
    NoFolder,
    /// Neither `--older_than` nor `--name`.
    #[error("what is to go? --older_than=168h takes what was not written for a week, --name=NAME,NAME takes those")]
    NothingSelected,
    /// Reading a folder.
    #[error("{path}: {source}")]
    Read {
        /// Which.
        path: PathBuf,
        /// What failed.
        source: std::io::Error,
    },
    /// Some could not be removed.
    #[error("{}", .0.join("\n"))]
    NotRemoved(Vec<String>),
}

/// Runs one of the two.
pub fn run(args: impl IntoIterator<Item = String>) -> Result<(), StateError> {
    let mut args = args.into_iter();
    match args.next().as_deref() {
        Some("ls") => ls(args),
        Some("gc") => gc(args),
        Some("help" | "--help" | "-h") => match args.next() {
            Some(word) => Err(StateError::Stray(word)),
            None => {
                say(&format!("{USAGE}\n"));
                Ok(())
            }
        },
        Some(other) => Err(StateError::Command(other.to_owned())),
        None => Err(StateError::NoCommand),
    }
}

fn ls(args: impl Iterator<Item = String>) -> Result<(), StateError> {
    let Some(given) = flags::read(&STATE_LS, args)? else { return Ok(()) };
    let (state, folder) = list_state(&given)?;
    if given.boolean("json") {
        say(&format!("{:#}\n", as_json(&state)));
        return Ok(());
    }
    let missing = if folder.is_dir() { "" } else { ": there is no such folder" };
    let mut out = format!("state folders in {}{missing}\n", folder.display());
    for one in &state.folders {
        let use_of = one.in_use.as_ref().map_or("not in use".to_owned(), |holder| format!("in use, {holder}"));
        let size = mooncake_metrics::bytes(one.bytes);
        out += &format!("  {:<32} {:<22} {:>10}  written {} ago\n", one.name, use_of, size, age(one.written));
    }
    out += &format!("witnesses in {}\n", given.text_or_default("witness_dir"));
    let is_listed = |one: &&LeftWitness| given.boolean("all") || one.in_use || one.folder.is_some();
    for one in state.witnesses.iter().filter(is_listed) {
        let use_of = if one.in_use { "in use" } else { "not in use" };
        let of = one.folder.as_deref().unwrap_or("of no folder here");
        out += &format!("  {:016x}{:16} {use_of:<22} {of:>10}  written {} ago\n", one.log_id, "", age(one.written));
    }
    let left_out = state.witnesses.iter().filter(|one| !is_listed(one)).count();
    if left_out > 0 {
        out += &format!(
            "  {left_out} not in use, of no folder here: --all lists them, mooncake state gc --older_than=168h removes \
             those of them that are a week old\n"
        );
    }
    say(&out);
    Ok(())
}

fn gc(args: impl Iterator<Item = String>) -> Result<(), StateError> {
    let Some(given) = flags::read(&STATE_GC, args)? else { return Ok(()) };
    let older_than = given.milliseconds("older_than").map(Duration::from_millis);
    let names: Vec<&str> = given.text_or_default("name").split(',').filter(|name| !name.is_empty()).collect();
    if older_than.is_none() && names.is_empty() {
        return Err(StateError::NothingSelected);
    }
    let is_old = |written| older_than.is_some_and(|age| since(written) >= age);
    let (state, _) = list_state(&given)?;
    let mut not_removed: Vec<String> = Vec::new();
    for name in names.iter().filter(|name| !state.folders.iter().any(|folder| folder.name == **name)) {
        not_removed.push(format!("{name}: there is no such state folder"));
    }
    let witnesses = PathBuf::from(given.text_or_default("witness_dir"));
    let dry = given.boolean("dry_run");
    let removed = if dry { "would be removed" } else { "removed" };
    for folder in &state.folders {
        let is_named = names.contains(&folder.name.as_str());
        match (is_named || is_old(folder.written), &folder.in_use) {
            (true, None) => match if dry { folder.check_own() } else { folder.remove(&witnesses) } {
                Ok(()) => say(&format!("{removed}: {}\n", folder.path.display())),
                Err(error @ LogError::Locked { .. }) if !is_named => say(&format!("left: {error}\n")),
                Err(error) => not_removed.push(error.to_string()),
            },
            (true, Some(holder)) if is_named => {
                not_removed.push(format!("{}: in use ({holder})", folder.path.display()))
            }
            _ => {}
        }
    }
    // A folder's witness was removed with it.
    for one in state.witnesses.iter().filter(|one| one.folder.is_none() && !one.in_use && is_old(one.written)) {
        match if dry { Ok(true) } else { one.remove() } {
            Ok(true) => say(&format!("{removed}: {}\n", one.path.display())),
            // A master took it meanwhile.
            Ok(false) => {}
            Err(source) => not_removed.push(format!("{}: {source}", one.path.display())),
        }
    }
    if not_removed.is_empty() { Ok(()) } else { Err(StateError::NotRemoved(not_removed)) }
}

fn list_state(given: &Given) -> Result<(State, PathBuf), StateError> {
    let named = given.text("state_dir").filter(|path| !path.is_empty()).map(PathBuf::from);
    let folder = named.or_else(|| state_folder(|name| std::env::var(name).ok())).ok_or(StateError::NoFolder)?;
    let witnesses = PathBuf::from(given.text_or_default("witness_dir"));
    let state = State::list(&folder, &witnesses);
    Ok((state.map_err(|source| StateError::Read { path: folder.clone(), source })?, folder))
}

fn as_json(state: &State) -> Value {
    let folder = |one: &StateFolder| {
        json!({
            "name": one.name, "path": one.path, "in_use": one.in_use.is_some(), "holder": one.in_use,
            "bytes": one.bytes, "written_s_ago": since(one.written).as_secs(),
            "log_id": one.log_id.map(|id| format!("{id:016x}")),
        })
    };
    let witness = |one: &LeftWitness| {
        json!({
            "log_id": format!("{:016x}", one.log_id), "path": one.path, "in_use": one.in_use, "folder": one.folder,
            "written_s_ago": since(one.written).as_secs(),
        })
    };
    json!({
        "folders": state.folders.iter().map(folder).collect::<Vec<_>>(),
        "witnesses": state.witnesses.iter().map(witness).collect::<Vec<_>>(),
    })
}

fn since(time: SystemTime) -> Duration {
    time.elapsed().unwrap_or_default()
}

/// For people: one unit, days from 48 hours on.
fn age(written: SystemTime) -> String {
    match since(written).as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min", seconds / 60),
        seconds @ 3600..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}
