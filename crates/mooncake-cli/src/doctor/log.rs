//! Whether the master keeps a log.

use serde_json::Value;

use super::finding::{Area, Finding, Findings};
use super::pool::Pool;
use crate::terminal::bytes;

/// Judges it.
pub fn judge(pool: &Pool) -> Vec<Finding> {
    let mut found = Findings::of(Area::State);
    log(pool, &mut found);
    found.sorted()
}

fn log(pool: &Pool, found: &mut Findings) {
    let Some(status) = pool.status() else {
        return found.skip("log", "whether the master keeps a log is not known without its pages");
    };
    let held = bytes(status["log"]["bytes"].as_f64().unwrap_or(0.0));
    let is_told = |problem: &Value| problem["code"] == "log_lost";
    match status["log"]["state"].as_str() {
        Some("on") => found.ok("log", format!("the master keeps a log, with {held} behind its last snapshot")),
        Some("off") => found.warn(
            "log",
            "the master keeps no log: its restart forgets every object",
            "mooncake_master --wal=on, with a fixed --rpc_port or with --wal_dir=FOLDER",
        ),
        // Among the master's problems it has been told, with its remedy.
        Some("lost") if status["problems"].as_array().is_some_and(|all| all.iter().any(is_told)) => {}
        Some("lost") => found.error(
            "log",
            "the master has lost its log: its restart forgets every object",
            "make room on its disk, then curl -X POST http://MASTER:9003/api/v1/start_log",
        ),
        _ => found.skip("log", "the master does not say whether it keeps a log"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::doctor::broken;
    use crate::doctor::finding::{Severity, told};

    #[test]
    fn a_log_that_is_off_or_lost_is_told_once() {
        let mut status = broken::status();
        for (state, severity, says) in [
            ("off", Severity::Warning, "--wal=on"),
            ("lost", Severity::Error, "start_log"),
            ("?", Severity::Skipped, ""),
        ] {
            status["log"]["state"] = json!(state);
            told::is(&judge(&broken::pool(status.clone())), "log", severity, &[says]);
        }
        status["log"]["state"] = json!("lost");
        status["problems"] = json!([{"code": "log_lost", "severity": "error"}]);
        assert!(judge(&broken::pool(status)).iter().all(|finding| finding.check != "log"));
    }
}
