//! `mooncake tier list` and `mooncake tier forget`: what a master knows of tiers.

use std::time::Duration;

use mooncake_settings::{Given, SettingError, TIER_FORGET, TIER_LIST};
use serde_json::Value;
use ureq::Agent;
use ureq::http::Response;

use crate::flags;
use crate::logging::say;

const USAGE: &str = "mooncake tier list lists the tiers that a master knows, mooncake tier forget UUID has it forget \
    one that is gone for good, mooncake tier forget all each of them; both have --help";

/// A master that answers at all does so within this time: it syncs its log before it answers.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// Longest answer that is read, bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

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
    /// `forget` without what.
    #[error("which tier? mooncake tier forget UUID, or all; mooncake tier list has their UUIDs")]
    NothingNamed,
    /// The master is not there.
    #[error("no answer of a master's pages at {address}: {source}; --metrics_address=HOST:PORT says where they are")]
    Unreached {
        /// Where it was looked for.
        address: String,
        /// What failed.
        source: Box<ureq::Error>,
    },
    /// It said no.
    #[error("the master at {address} answers: {message}")]
    Refused {
        /// Which.
        address: String,
        /// What it said.
        message: String,
    },
    /// It is no master, or an older one.
    #[error(
        "{address} answers {path} with status {status} and no list of tiers: it is no master, or one of before tiers"
    )]
    Odd {
        /// Which.
        address: String,
        /// What was asked for.
        path: String,
        /// Its answer.
        status: u16,
    },
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
    let master = MasterPages::of(&given);
    let answer = master.ask("/get_tiers_detail", false)?;
    if given.boolean("json") {
        say(&format!("{answer:#}\n"));
        return Ok(());
    }
    let Some(tiers) = answer["tiers"].as_array() else { return Err(master.odd("/get_tiers_detail", 200)) };
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
        let [text, owner] = ["uuid", "owner"].map(|name| tier[name].as_str().unwrap_or("?"));
        let state = match (tier["state"].as_str(), tier["adopted"].as_bool()) {
            (Some("LIVE"), Some(true)) => "adopted".to_owned(),
            // Its disk fails or stands still, or it is full for good: its owner's log says which.
            (Some("LIVE"), _) if tier["window_bytes"].as_u64() == Some(0) => "read-only".to_owned(),
            (state, _) => state.unwrap_or("?").to_lowercase(),
        };
        let [records, used, capacity] =
            ["records", "object_bytes", "capacity_bytes"].map(|name| tier[name].as_u64().unwrap_or(0));
        let share = 100.0 * used as f64 / capacity.max(1) as f64;
        let [used, capacity] = [used, capacity].map(mooncake_metrics::bytes);
        out += &format!("{text:<32} {state:<9} {records:>9} {used:>10} {capacity:>10} {share:>3.0}% {owner}\n");
    }
    out
}

fn forget(args: impl Iterator<Item = String>) -> Result<(), TierError> {
    let mut args = args.peekable();
    // It stands first: what stands behind a flag may be the flag's.
    let named = args.next_if(|word| !word.starts_with('-'));
    let Some(given) = flags::read(&TIER_FORGET, args)? else { return Ok(()) };
    let named = named.ok_or(TierError::NothingNamed)?;
    // Anything else is no UUID, and would be another parameter of the page.
    let asked: String = named.chars().map(|one| if one.is_ascii_alphanumeric() { one } else { '?' }).collect();
    let master = MasterPages::of(&given);
    let path = format!("/api/v1/forget_tier?uuid={}", asked.replace('?', "%3F"));
    let answer = master.ask(&path, true)?;
    let Some(forgotten) = answer["forgotten"].as_array() else { return Err(master.odd(&path, 200)) };
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

/// The HTTP pages of one master.
struct MasterPages {
    address: String,
    agent: Agent,
}

impl MasterPages {
    fn of(given: &Given) -> MasterPages {
        let config = Agent::config_builder()
            .timeout_global(Some(ANSWER_LIMIT))
            .timeout_connect(Some(CONNECT_LIMIT))
            .http_status_as_error(false)
            // A master sends nobody elsewhere, and a proxy of the environment is for hosts outside of the cluster.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .build();
        let named = given.text_or_default("metrics_address");
        let address = named.strip_prefix("http://").unwrap_or(named).trim_end_matches('/').to_owned();
        MasterPages { address, agent: config.into() }
    }

    /// What a page answers, if that is a success.
    fn ask(&self, path: &str, is_change: bool) -> Result<Value, TierError> {
        let url = format!("http://{}{path}", self.address);
        let unreached = |source| TierError::Unreached { address: self.address.clone(), source: Box::new(source) };
        let answered = match is_change {
            true => self.agent.post(url).send_empty(),
            false => self.agent.get(url).call(),
        };
        let mut answer: Response<ureq::Body> = answered.map_err(unreached)?;
        let status = answer.status().as_u16();
        let text = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string().map_err(unreached)?;
        let value: Value = serde_json::from_str(&text).map_err(|_| self.odd(path, status))?;
        match (status, value["error_message"].as_str()) {
            (200, _) => Ok(value),
            (_, Some(message)) => {
                Err(TierError::Refused { address: self.address.clone(), message: message.to_owned() })
            }
            (status, None) => Err(self.odd(path, status)),
        }
    }

    fn odd(&self, path: &str, status: u16) -> TierError {
        TierError::Odd { address: self.address.clone(), path: path.to_owned(), status }
    }
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
        assert!(said(&["forget"]).contains("which tier?"));
        assert!(said(&["forget", "--metrics_address=127.0.0.1:1"]).contains("which tier?"));
        let unreached = said(&["forget", "all", "--metrics_address=127.0.0.1:1"]);
        assert!(unreached.contains("127.0.0.1:1") && unreached.contains("--metrics_address"), "{unreached}");
    }
}
