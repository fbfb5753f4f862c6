//! `mooncake status`: how a pool is, on one screen.

use std::fmt::Write;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use mooncake_settings::STATUS;
use serde_json::Value;

use super::pages::{Pages, PagesError, ReadError};
use crate::flags;
use crate::logging::{say, say_more};
use crate::terminal::{Paint, bar, bytes, cut, duration, has_colour, microseconds, number, plain};

/// Between two pictures of `--watch`.
const EVERY: Duration = Duration::from_secs(2);

/// Clients that are shown of each kind, unless all are.
const SHOWN: usize = 10;

/// Something is wrong.
const ILL: u8 = 1;

/// Shows it.
pub fn run(args: impl IntoIterator<Item = String>) -> Result<ExitCode, ReadError> {
    let Some(given) = flags::read(&STATUS, args)? else { return Ok(ExitCode::SUCCESS) };
    let (paint, shown, is_json) = (Paint(has_colour()), shown(given.boolean("all")), given.boolean("json"));
    let mut pages = None;
    loop {
        // A master that is started again may have its pages elsewhere.
        let found = pages.take().map_or_else(|| Pages::of(&given), Ok);
        let status = found.and_then(|found| Ok((read(&found)?, found)));
        let told = match &status {
            Ok((status, _)) if is_json => format!("{status:#}\n"),
            Ok((status, _)) => screen(status, paint, shown),
            Err(error) => format!("{}\n", plain(&error.to_string())),
        };
        if !given.boolean("watch") {
            let (status, _) = status?;
            say(&told);
            return Ok(code(&status));
        }
        // From the top of the terminal, without a moment of emptiness.
        let clear = if std::io::stdout().is_terminal() && !is_json { "\x1b[H\x1b[J" } else { "" };
        if !say_more(&format!("{clear}{told}")) {
            return Ok(ExitCode::SUCCESS);
        }
        pages = status.ok().map(|(_, found)| found);
        std::thread::sleep(EVERY);
    }
}

fn shown(all: bool) -> usize {
    if all { usize::MAX } else { SHOWN }
}

/// Reads it; an answer of something else is an error.
pub fn read(pages: &Pages) -> Result<Value, PagesError> {
    let status = pages.ask("/status")?;
    match status["state"].is_string() {
        true => Ok(status),
        false => Err(pages.odd("/status", 200)),
    }
}

fn code(status: &Value) -> ExitCode {
    let is_ill = status["problems"].as_array().is_some_and(|all| all.iter().any(|it| it["severity"] == "error"));
    if is_ill || status["state"] != "serving" { ExitCode::from(ILL) } else { ExitCode::SUCCESS }
}

/// A number of it; 0 where there is none.
pub fn figure(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

/// A text of it, as it may be printed.
pub fn text(value: &Value) -> String {
    plain(value.as_str().unwrap_or(""))
}

/// A share in percent, or `-` of nothing.
pub fn percent(part: f64, of: f64) -> String {
    if of > 0.0 { format!("{:.1} %", 100.0 * part / of) } else { "-".to_owned() }
}

fn screen(status: &Value, paint: Paint, shown: usize) -> String {
    let mut out = String::new();
    let state = text(&status["state"]);
    let state = if state == "serving" { paint.green(&state) } else { paint.red(&state) };
    let _ = writeln!(
        out,
        "{}  {state}  version {}  up {}  {}",
        paint.bold(&text(&status["cluster_id"])),
        text(&status["version"]),
        duration(figure(&status["uptime_seconds"])),
        text(&status["rpc_address"]),
    );
    for problem in status["problems"].as_array().into_iter().flatten() {
        let (message, remedy) = (text(&problem["message"]), text(&problem["remedy"]));
        let severity = text(&problem["severity"]);
        let severity = if severity == "error" { paint.red(&severity) } else { paint.yellow(&severity) };
        let _ = writeln!(out, "\n{severity}: {message}\n  {} {remedy}", paint.dim("->"));
    }
    // A master that reads its log has nothing else to tell.
    if status["memory"].is_object() {
        out.push('\n');
        figures(&mut out, status, paint);
        clients(&mut out, status, paint, shown);
    }
    out
}

fn figures(out: &mut String, status: &Value, paint: Paint) {
    let (memory, tiers, rates, latency) =
        (&status["memory"], &status["tiers"], &status["rates"], &status["latency_us"]);
    let of = |value: &Value| bytes(figure(value));
    let (used, capacity) = (figure(&memory["used_bytes"]), figure(&memory["capacity_bytes"]));
    let mut line = |name: &str, text: String| _ = writeln!(out, "{}  {text}", paint.bold(&format!("{name:<8}")));
    let share = used / capacity.max(1.0);
    line("memory", format!("{} {} of {}  {}", bar(share, 20), bytes(used), bytes(capacity), percent(used, capacity)));
    line(
        "",
        format!(
            "{} objects; pinned {}, unfinished {}, in quarantine {}",
            number(figure(&memory["objects"])),
            of(&memory["pinned_bytes"]),
            of(&memory["unfinished_bytes"]),
            of(&memory["quarantined_bytes"]),
        ),
    );
    if figure(&tiers["live"]) + figure(&tiers["hidden"]) > 0.0 {
        let (used, capacity) = (figure(&tiers["used_bytes"]), figure(&tiers["capacity_bytes"]));
        line(
            "tiers",
            format!(
                "{} {} of {}  {}; {} objects; {} not written yet",
                bar(used / capacity.max(1.0), 20),
                bytes(used),
                bytes(capacity),
                percent(used, capacity),
                number(figure(&tiers["objects"])),
                of(&tiers["unwritten_bytes"]),
            ),
        );
    }
    let rate = |name: &str| figure(&rates[name]);
    line(
        "hits",
        format!(
            "gets {} (from tiers {}), existence queries {}, evicted before their get {}/s",
            percent(rate("get_hits"), rate("gets")),
            percent(rate("tier_hits"), rate("gets")),
            percent(rate("exists_hits"), rate("exists")),
            number(rate("lookup_then_miss")),
        ),
    );
    line(
        "traffic",
        format!(
            "gets {}/s {}/s, puts {}/s {}/s, existence queries {}/s, evicted {}/s, failed puts {}/s",
            number(rate("gets")),
            bytes(rate("got_bytes")),
            number(rate("puts")),
            bytes(rate("put_bytes")),
            number(rate("exists")),
            bytes(rate("evicted_bytes")),
            number(rate("put_failures")),
        ),
    );
    let us = |kind: &str, share: &str| microseconds(latency[kind][share].as_f64());
    line(
        "latency",
        format!(
            "get {} (p99 {}), put start {} (p99 {}), log p99 {}, its disk p99 {}",
            us("get", "p50"),
            us("get", "p99"),
            us("put_start", "p50"),
            us("put_start", "p99"),
            us("log_append", "p99"),
            us("log_fsync", "p99"),
        ),
    );
    let failures = &status["put_failures"];
    let failed = ["no_room", "too_large", "busy", "refused"].map(|why| (why, figure(&failures[why])));
    if failed.iter().any(|(_, count)| *count > 0.0) {
        let told: Vec<String> =
            failed.iter().map(|(why, count)| format!("{} {}", why.replace('_', " "), number(*count))).collect();
        line("puts", format!("not stored in the last {}: {}", duration(figure(&failures["seconds"])), told.join(", ")));
    }
    let log = &status["log"];
    let state = text(&log["state"]);
    let state = if state == "lost" { paint.red(&state) } else { state };
    line(
        "log",
        format!(
            "{state}, {} behind the last snapshot, position {}, epoch {}",
            of(&log["bytes"]),
            number(figure(&log["lsn"])),
            number(figure(&status["epoch"])),
        ),
    );
}

fn clients(out: &mut String, status: &Value, paint: Paint, shown: usize) {
    let all: Vec<&Value> = status["clients"].as_array().into_iter().flatten().collect();
    let lends = |client: &&&Value| figure(&client["lent_bytes"]) + figure(&client["tiers"]) > 0.0;
    let mut nodes: Vec<&Value> = all.iter().filter(lends).copied().collect();
    nodes.sort_by_key(|node| order_of(node));
    let _ = writeln!(
        out,
        "\n{}",
        paint.bold(&format!(
            "{:<24} {:<14} {:<14} {:>9} {:>9} {:>9} {:<7} {}",
            format!("nodes ({})", nodes.len()),
            "state",
            "used",
            "of",
            "pinned",
            "tier",
            "paths",
            "host"
        ))
    );
    for node in nodes.iter().take(shown) {
        let (used, lent) = (figure(&node["used_bytes"]), figure(&node["lent_bytes"]));
        let share = used / lent.max(1.0);
        let paths: Vec<String> = node["paths"].as_array().into_iter().flatten().map(text).collect();
        let _ = writeln!(
            out,
            "{:<24} {} {} {:>3.0} % {:>9} {:>9} {:>9} {:<7} {}",
            cut(&text(&node["name"]), 24),
            state(node, paint),
            bar(share, 8),
            100.0 * share,
            bytes(lent),
            bytes(figure(&node["pinned_bytes"])),
            bytes(figure(&node["tier_used_bytes"])),
            paths.join(","),
            cut(&text(&node["host"]), 20),
        );
    }
    more(out, nodes.len(), shown);
    let mut users = all;
    let busy = |client: &Value| figure(&client["gets_per_second"]) + figure(&client["puts_per_second"]);
    users.sort_by(|a, b| busy(b).total_cmp(&busy(a)).then(order_of(a).cmp(&order_of(b))));
    let _ = writeln!(
        out,
        "\n{}",
        paint.bold(&format!(
            "{:<24} {:<16} {:>9} {:>9} {:>9} {:>9} {:>9} {}",
            format!("clients ({})", users.len()),
            "program",
            "lends",
            "stored",
            "views",
            "gets/s",
            "puts/s",
            "user@host"
        ))
    );
    for user in users.iter().take(shown) {
        let pod = text(&user["pod"]);
        let host = if pod.is_empty() { text(&user["host"]) } else { pod };
        let program = format!("{} {}", cut(&text(&user["program"]), 8), figure(&user["pid"]));
        let _ = writeln!(
            out,
            "{:<24} {:<16} {:>9} {:>9} {:>9} {:>9} {:>9} {}@{}",
            cut(&text(&user["name"]), 24),
            cut(&program, 16),
            bytes(figure(&user["lent_bytes"])),
            bytes(figure(&user["stored_bytes"])),
            bytes(figure(&user["viewed_bytes"])),
            number(figure(&user["gets_per_second"])),
            number(figure(&user["puts_per_second"])),
            cut(&text(&user["user"]), 10),
            cut(&host, 20),
        );
    }
    more(out, users.len(), shown);
}

/// What is not well comes first; else the names decide.
fn order_of(client: &Value) -> (bool, String) {
    (client["state"] == "ok", text(&client["name"]))
}

fn state(client: &Value, paint: Paint) -> String {
    let state = text(&client["state"]);
    let told = match client["away_seconds"].as_f64() {
        Some(seconds) => format!("away {}", duration(seconds)),
        None => state.replace('_', " "),
    };
    let told = format!("{:<14}", cut(&told, 14));
    match &*state {
        "ok" => paint.green(&told),
        "closed" | "waits_for_heir" => paint.yellow(&told),
        _ => paint.red(&told),
    }
}

fn more(out: &mut String, all: usize, shown: usize) {
    if all > shown {
        let _ = writeln!(out, "  and {} more: --all shows them", all - shown);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn client(name: &str, state: &str, lent: u64) -> Value {
        json!({"name": name, "state": state, "host": "h\x1b[2J", "user": "u", "program": "vllm", "pid": 1234567,
            "lent_bytes": lent, "used_bytes": lent / 2, "paths": ["tcp", "shm"], "away_seconds": null,
            "gets_per_second": 12.5})
    }

    fn status() -> Value {
        json!({
            "version": "0.1.0", "cluster_id": "pool", "state": "serving", "uptime_seconds": 273600.0,
            "rpc_address": "0.0.0.0:50051",
            "problems": [{"severity": "error", "message": "the log is lost", "remedy": "begin a new one"}],
            "memory": {"capacity_bytes": 512_u64 << 30, "used_bytes": 412_u64 << 30, "objects": 4213223},
            "tiers": {"live": 1, "capacity_bytes": 1_u64 << 40, "used_bytes": 1_u64 << 39},
            "rates": {"gets": 8100.0, "get_hits": 7371.0, "exists": 0.0},
            "latency_us": {"get": {"p50": 20.0, "p99": 300.0}},
            "put_failures": {"seconds": 3600.0, "no_room": 12},
            "clients": [client("10.0.0.5:12345", "ok", 128 << 30), client("10.0.0.7:1", "away", 128 << 30),
                client("app:1", "ok", 0)],
            "log": {"state": "lost", "bytes": 0, "lsn": 5}, "epoch": 1,
        })
    }

    #[test]
    fn what_is_wrong_comes_first_and_all_fits_a_terminal() {
        let screen = screen(&status(), Paint(false), 10);
        let lines: Vec<&str> = screen.lines().collect();
        assert_eq!(lines[0], "pool  serving  version 0.1.0  up 3 d 4 h  0.0.0.0:50051");
        assert_eq!((lines[2], lines[3]), ("error: the log is lost", "  -> begin a new one"));
        assert!(screen.contains("412 GB of 512 GB  80.5 %"), "{screen}");
        assert!(screen.contains("gets 91.0 %") && screen.contains("existence queries -"), "{screen}");
        assert!(lines.iter().all(|line| line.chars().count() <= 120), "{screen}");
        assert!(!screen.contains('\x1b'), "what a client says moves no cursor");
        let (away, well) = (screen.find("10.0.0.7:1 ").unwrap(), screen.find("10.0.0.5:12345").unwrap());
        assert!(away < well, "{screen}");
        assert!(screen.contains("nodes (2)") && screen.contains("clients (3)"), "{screen}");
    }

    #[test]
    fn a_master_that_reads_its_log_says_so_and_is_no_success() {
        let starting = json!({"state": "recovering", "version": "0.1.0", "problems": [], "uptime_seconds": 1.5});
        assert_eq!(screen(&starting, Paint(false), 10), "  recovering  version 0.1.0  up 1.5 s  \n");
        assert_eq!(format!("{:?}", code(&starting)), format!("{:?}", ExitCode::from(ILL)));
        assert_eq!(format!("{:?}", code(&status())), format!("{:?}", ExitCode::from(ILL)));
        let well = json!({"state": "serving", "problems": [{"severity": "warning"}]});
        assert_eq!(format!("{:?}", code(&well)), format!("{:?}", ExitCode::SUCCESS));
    }
}
