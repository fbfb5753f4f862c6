//! `mooncake tier list` and `mooncake tier forget`: what a master knows of tiers.

use mooncake_settings::{SettingError, TIER_FORGET, TIER_LIST};
use serde_json::Value;

use crate::flags;
use crate::logging::say;
use crate::pool::pages::{Pages, PagesError};
use crate::terminal::{bytes, plain};

const USAGE: &str = "mooncake tier list lists the tiers that a master knows, mooncake tier forget UUID has it forget \
    one that is gone for good, mooncake tier forget all each of them; both have --help";

/// Why nothing is listed or forgotten.
#[derive(Debug, thiserror::Error)]
pub enum TierError {
    /// The command line.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// Neither `list` nor `forget`.
    #[error("mooncake tier has no command {0:?}. {USAGE}")]
    Command(String),
    /// A word behind `help`.
    #[error("unexpected argument {0:?}. {USAGE}")]
    Stray(String),
    /// Nothing.
    #[error("{USAGE}")]
    NoCommand,
    /// The master.
    #[error(transparent)]
    Pages(#[from] PagesError),
}

/// Runs one of the two.
pub fn run(args: impl IntoIterator<Item = String>) -> Result<(), TierError> {
    let mut args = args.into_iter();
    match args.next().as_deref() {
        Some("list" | "ls") => list(args),
        Some("forget") => forget(args),
        Some("help" | "--help" | "-h") => match args.next() {
            Some(word) => Err(TierError::Stray(word)),
            None => {
                say(&format!("{USAGE}\n"));
                Ok(())
            }
        },
        Some(other) => Err(TierError::Command(other.to_owned())),
        None => Err(TierError::NoCommand),
    }
}

fn list(args: impl Iterator<Item = String>) -> Result<(), TierError> {
    let Some(given) = flags::read(&TIER_LIST, args)? else { return Ok(()) };
    let master = Pages::of(&given)?;
    let answer = master.ask("/get_tiers_detail")?;
    if given.boolean("json") {
        say(&format!("{answer:#}\n"));
        return Ok(());
    }
    let Some(tiers) = answer["tiers"].as_array() else { return Err(master.odd("/get_tiers_detail", 200).into()) };
    say(&table(tiers));
    Ok(())
}

/// As wide as a terminal of 100 columns, where no owner has a long name.
fn table(tiers: &[Value]) -> String {
    if tiers.is_empty() {
        return "no tiers\n".to_owned();
    }
    let mut out =
        format!("{:<32} {:<9} {:>9} {:>10} {:>10} {:>4} OWNER\n", "UUID", "STATE", "OBJECTS", "BYTES", "OF", "USED");
    for tier in tiers {
        let [text, owner] = ["uuid", "owner"].map(|name| plain(tier[name].as_str().unwrap_or("?")));
        let state = match (tier["state"].as_str(), tier["adopted"].as_bool()) {
            (Some("LIVE"), Some(true)) => "adopted".to_owned(),
            // Its disk fails or stands still, or it is full for good: its owner's log says which.
            (Some("LIVE"), _) if tier["window_bytes"].as_u64() == Some(0) => "read-only".to_owned(),
            (state, _) => state.unwrap_or("?").to_lowercase(),
        };
        let [records, used, capacity] =
            ["records", "object_bytes", "capacity_bytes"].map(|name| tier[name].as_u64().unwrap_or(0));
        let share = 100.0 * used as f64 / capacity.max(1) as f64;
        let [used, capacity] = [used, capacity].map(|count| bytes(count as f64));
        out += &format!("{text:<32} {state:<9} {records:>9} {used:>10} {capacity:>10} {share:>3.0}% {owner}\n");
    }
    out
}

fn forget(args: impl Iterator<Item = String>) -> Result<(), TierError> {
    let Some(given) = flags::read(&TIER_FORGET, args)? else { return Ok(()) };
    let named = &given.operands[0];
    // Anything else is no UUID, and would be another parameter of the page.
    let asked: String = named.chars().map(|one| if one.is_ascii_alphanumeric() { one } else { '?' }).collect();
    let master = Pages::of(&given)?;
    let path = format!("/api/v1/forget_tier?uuid={}", asked.replace('?', "%3F"));
    let answer = master.change(&path)?;
    let Some(forgotten) = answer["forgotten"].as_array() else { return Err(master.odd(&path, 200).into()) };
    for tier in forgotten {
        let (uuid, records) = (tier["uuid"].as_str().unwrap_or("?"), tier["records"].as_u64().unwrap_or(0));
        let objects = if records == 1 { "object" } else { "objects" };
        say(&format!("forgotten: {uuid}, with {records} {objects}\n"));
    }
    if forgotten.is_empty() {
        say("no tiers\n");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_table_has_a_line_for_each_tier_and_is_as_wide_as_a_terminal() {
        let tier = |state: &str, bytes: u64| {
            json!({"uuid": "0123456789abcdef0123456789abcdef", "state": state, "owner": "10.0.0.5:12345",
                "records": 123_456_789, "object_bytes": bytes, "capacity_bytes": 1_u64 << 40})
        };
        let table = table(&[tier("LIVE", 512 << 30), tier("CHECKING", 0), tier("HIDDEN", 1 << 40)]);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines.iter().all(|line| line.len() <= 100), "{table}");
        assert!(lines[1].contains(" live ") && lines[1].contains(" 50% 10.0.0.5:12345"), "{table}");
        assert_eq!(super::table(&[]), "no tiers\n");
    }

    #[test]
    fn a_command_line_that_names_nothing_is_refused_before_a_master_is_asked() {
        let said = |args: &[&str]| run(args.iter().map(|arg| (*arg).to_owned())).unwrap_err().to_string();
        assert!(said(&[]).contains("mooncake tier list"));
        assert!(said(&["prune"]).contains("\"prune\""));
        assert!(said(&["help", "forget"]).contains("\"forget\""));
        assert!(said(&["forget"]).contains("which UUID?"));
        assert!(said(&["forget", "--metrics_address=127.0.0.1:1"]).contains("which UUID?"));
        let unreached = said(&["forget", "all", "--metrics_address=127.0.0.1:1"]);
        assert!(unreached.contains("127.0.0.1:1") && unreached.contains("--metrics_address"), "{unreached}");
    }
}
