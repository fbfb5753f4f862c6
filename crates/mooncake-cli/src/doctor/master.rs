//! Whether the master answers, how fast, what it says is wrong, and whether all of the pool is of one version.

use std::collections::BTreeMap;
use std::time::Duration;

use super::finding::{Area, Finding, Findings};
use super::member::Member;
use super::pool::{NoMaster, NoPages, Pool, Unanswered};
use super::wheel::{VERSION, install};
use crate::pool::status::text;
use crate::terminal::microseconds;

/// A round trip that takes longer is felt in each put.
const SLOW: Duration = Duration::from_millis(50);

/// Members of a kind that are named; the others are counted.
const NAMED: usize = 3;

/// What to do about a master that reads its log.
const WAIT: &str = "wait; mooncake status --watch shows when it serves";

/// Judges it.
pub fn judge(pool: &Pool) -> Vec<Finding> {
    let mut found = Findings::of(Area::Master);
    answers(pool, &mut found);
    pages(pool, &mut found);
    versions(pool, &mut found);
    found.sorted()
}

fn answers(pool: &Pool, found: &mut Findings) {
    let info = match &pool.master {
        Ok(info) => info,
        Err(unanswered) if pool.is_recovering() => {
            return found.warn(
                "answers",
                format!(
                    "{}: its pages say that it reads its log, and its control port is silent until it has",
                    unanswered.message
                ),
                WAIT,
            );
        }
        Err(unanswered) => return found.error("answers", &unanswered.message, remedy(&pool.address, unanswered)),
    };
    let took = microseconds(Some(info.took.as_secs_f64() * 1e6));
    let cluster = if info.cluster_id.is_empty() { String::new() } else { format!(", pool {}", info.cluster_id) };
    let message = format!("{} answers in {took}: {}{cluster}", pool.address, info.software);
    match info.took > SLOW {
        true => found.warn(
            "answers",
            format!("{message}; each put asks the master twice, and a look-up gives up after 500 ms"),
            "run the master nearer to its clients, or look for what keeps its host busy: mooncake status",
        ),
        false => found.ok("answers", message),
    }
}

/// The command line that names the right port, as far as it is known.
fn remedy(address: &str, unanswered: &Unanswered) -> String {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    match &unanswered.kind {
        NoMaster::Node(Some(master)) => format!("mooncake doctor --master={master}"),
        NoMaster::Http => format!(
            "pass the control port: mooncake doctor --master={host}:50051; curl -s http://{address}/status has it as \
             rpc_address"
        ),
        NoMaster::Owner | NoMaster::Node(None) => {
            format!("pass the control port: mooncake doctor --master={host}:50051")
        }
        NoMaster::Address => "mooncake doctor --master=HOST:PORT, or MOONCAKE_MASTER=HOST:PORT".to_owned(),
        NoMaster::Name => format!(
            "mend the name {host} (/etc/hosts, the name service), or pass an address: mooncake doctor \
             --master=ADDRESS:PORT"
        ),
        NoMaster::Silence => {
            let port = match address.rsplit_once(':') {
                None | Some((_, "50051")) => String::new(),
                Some((_, port)) => format!(" --rpc_port={port}"),
            };
            format!(
                "start it there (mooncake_master --rpc_address={host}{port}), or name another one (mooncake doctor \
                 --master=HOST:PORT); if it runs, let a firewall pass its port"
            )
        }
    }
}

fn pages(pool: &Pool, found: &mut Findings) {
    let pages = match &pool.pages {
        Ok(pages) => pages,
        Err(NoPages::NoMaster) => {
            return found.skip("pages", "its pages were not asked: a master says where they are, and none answers");
        }
        Err(NoPages::Elsewhere(message)) => return found.skip("pages", message),
        Err(NoPages::Unreached(message)) => {
            let remedy = "mooncake doctor --metrics_address=HOST:PORT, or start the master with --metrics_host=ADDRESS \
                          that is reached from here";
            return match &pool.master {
                // Calls go by the control port alone.
                Ok(_) => found.warn("pages", message, remedy),
                Err(_) => found.error("pages", message, remedy),
            };
        }
        Err(NoPages::Odd(message)) => {
            return found.warn("pages", message, format!("update the master to {VERSION}: its /status has the rest"));
        }
    };
    let took = microseconds(Some(pages.took.as_secs_f64() * 1e6));
    found.ok("pages", format!("its pages answer in {took}"));
    let state = text(&pages.status["state"]);
    match &*state {
        "serving" => {}
        "recovering" => found.warn("state", "it reads its log, and calls wait for it", WAIT),
        _ => found.error("state", format!("it is {state}, and answers no call"), "start it again"),
    }
    let problems = pages.status["problems"].as_array().map_or(&[][..], |all| all);
    for problem in problems {
        let (code, message, remedy) = (text(&problem["code"]), text(&problem["message"]), text(&problem["remedy"]));
        match problem["severity"] == "error" {
            true => found.error(&code, message, remedy),
            false => found.warn(&code, message, remedy),
        }
    }
    if problems.is_empty() && state == "serving" {
        found.ok("problems", "it knows of no problem");
    }
}

fn versions(pool: &Pool, found: &mut Findings) {
    let told = pool.status().map(|status| text(&status["version"])).filter(|version| !version.is_empty());
    let of_info = pool.master.as_ref().ok().map(|info| version_of(&info.software).to_owned());
    let master = told.or(of_info);
    match &master {
        Some(master) if master != VERSION => found.warn(
            "version",
            format!("the master has version {master}, this binary {VERSION}"),
            format!("install one version everywhere, the master first: {}", install("VERSION")),
        ),
        Some(_) => found.ok("version", format!("the master has this binary's version, {VERSION}")),
        None => {}
    }
    let mut by_version: BTreeMap<&str, Vec<&Member>> = BTreeMap::new();
    // A session that a master has from its log alone does not say what it is yet.
    for member in pool.members.iter().filter(|member| !member.software.is_empty()) {
        by_version.entry(version_of(&member.software)).or_default().push(member);
    }
    let mut by_version: Vec<(&str, Vec<&Member>)> = by_version.into_iter().collect();
    by_version.sort_by_key(|(_, members)| members.len());
    match &by_version[..] {
        [] => return,
        [(version, all)] => {
            let message = format!("clients are of one version ({version}, {} of them)", all.len());
            return found.ok("member_versions", message);
        }
        _ => {}
    }
    let told: Vec<String> = by_version.iter().map(|(version, members)| of_version(version, members)).collect();
    found.warn(
        "member_versions",
        format!("clients are of several versions: {}", told.join("; ")),
        format!("install one version everywhere, clients before storage nodes: {}", install("VERSION")),
    );
}

/// `1 of 0.0.9 (10.0.0.7:12345 on h7)`
fn of_version(version: &str, members: &[&Member]) -> String {
    let named: Vec<String> =
        members.iter().take(NAMED).map(|member| format!("{} on {}", member.name, member.host)).collect();
    let more = if members.len() > NAMED { ", ..." } else { "" };
    format!("{} of {version} ({}{more})", members.len(), named.join(", "))
}

/// The version of `mooncake-master 0.1.0`.
fn version_of(software: &str) -> &str {
    software.rsplit_once(' ').map_or(software, |(_, version)| version)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::doctor::broken::{self, client};
    use crate::doctor::finding::{Severity, told};

    fn without_a_master(message: &str, kind: NoMaster) -> Vec<Finding> {
        let master = Err(Unanswered { message: message.to_owned(), kind });
        judge(&Pool { master, pages: Err(NoPages::NoMaster), members: Vec::new(), ..broken::pool(broken::status()) })
    }

    /// A pool whose pages answer, and whose control port does not.
    fn silent(status: Value) -> Pool {
        let master = Err(Unanswered { message: "master a:1 does not answer".to_owned(), kind: NoMaster::Silence });
        Pool { master, ..broken::pool(status) }
    }

    #[test]
    fn a_master_that_reads_its_log_is_waited_for() {
        // As a master says it that has yet to read its log: it has nothing else to tell.
        let status = |state| json!({"version": VERSION, "state": state, "problems": [], "uptime_seconds": 1.5});
        let found = judge(&silent(status("recovering")));
        told::is(&found, "answers", Severity::Warning, &["a:1", "reads its log", "wait; mooncake status --watch"]);
        told::is(&found, "state", Severity::Warning, &["wait"]);
        told::is(&judge(&silent(status("serving"))), "answers", Severity::Error, &["mooncake_master"]);
        let mut named = silent(status("recovering"));
        named.master.as_mut().unwrap_err().kind = NoMaster::Owner;
        told::is(&judge(&named), "answers", Severity::Error, &["control port"]);
    }

    #[test]
    fn a_master_that_is_well_is_told_with_its_round_trip_its_pool_and_its_version() {
        let found = judge(&broken::pool(broken::status()));
        told::is(&found, "answers", Severity::Ok, &["127.0.0.1:50051 answers in 200 us", "pool mine"]);
        assert!(found.iter().all(|finding| finding.severity == Severity::Ok), "{found:#?}");
        let checks: Vec<&str> = found.iter().map(|finding| &finding.check[..]).collect();
        assert_eq!(checks, ["answers", "pages", "problems", "version", "member_versions"]);
    }

    #[test]
    fn what_is_no_master_is_an_error_with_the_command_line_that_names_one() {
        let is = |kind: NoMaster, says: &[&str]| {
            let found = without_a_master("no", kind);
            told::is(&found, "answers", Severity::Error, says);
            told::is(&found, "pages", Severity::Skipped, &["none answers"]);
        };
        is(NoMaster::Http, &["--master=127.0.0.1:50051", "http://127.0.0.1:50051/status"]);
        is(NoMaster::Node(Some("10.0.0.1:50051".to_owned())), &["mooncake doctor --master=10.0.0.1:50051"]);
        is(NoMaster::Node(None), &["--master=127.0.0.1:50051"]);
        is(NoMaster::Owner, &["--master=127.0.0.1:50051"]);
        is(NoMaster::Address, &["--master=HOST:PORT"]);
        is(NoMaster::Name, &["/etc/hosts", "--master=ADDRESS:PORT"]);
        is(NoMaster::Silence, &["mooncake_master --rpc_address=127.0.0.1"]);
    }

    #[test]
    fn a_slow_round_trip_is_a_warning() {
        let mut pool = broken::pool(broken::status());
        pool.master.as_mut().unwrap().took = Duration::from_millis(60);
        told::is(&judge(&pool), "answers", Severity::Warning, &["60 ms"]);
    }

    #[test]
    fn pages_that_do_not_answer_are_an_error_only_where_the_control_port_does_not_either() {
        let with = |pages| judge(&Pool { pages: Err(pages), ..broken::pool(broken::status()) });
        let (unreached, remedy) = (NoPages::Unreached("x".to_owned()), "--metrics_address=HOST:PORT");
        told::is(&with(unreached.clone()), "pages", Severity::Warning, &[remedy]);
        told::is(&with(NoPages::Elsewhere("closed".to_owned())), "pages", Severity::Skipped, &["closed"]);
        let silent = Pool { pages: Err(unreached), ..silent(broken::status()) };
        told::is(&judge(&silent), "pages", Severity::Error, &[remedy]);
        told::is(&with(NoPages::Odd("x".to_owned())), "pages", Severity::Warning, &["update the master"]);
    }

    #[test]
    fn what_the_master_says_is_wrong_is_passed_on_with_its_remedy() {
        let mut status = broken::status();
        status["problems"] = json!([
            {"code": "log_lost", "severity": "error", "message": "the log is lost\u{1b}[2J", "remedy": "free space"},
            {"code": "client_away", "severity": "warning", "message": "a:1 is away", "remedy": "look"},
        ]);
        let found = judge(&broken::pool(status.clone()));
        told::is(&found, "log_lost", Severity::Error, &["the log is lost", "free space"]);
        told::is(&found, "client_away", Severity::Warning, &["a:1 is away", "look"]);
        assert!(found.iter().all(|finding| finding.check != "problems" && !finding.message.contains('\u{1b}')));
        for (state, severity) in [("recovering", Severity::Warning), ("stopping", Severity::Error)] {
            status["state"] = json!(state);
            told::is(&judge(&broken::pool(status.clone())), "state", severity, &[]);
        }
    }

    #[test]
    fn versions_that_differ_are_told_with_those_that_have_them() {
        let mut status = broken::status();
        status["version"] = json!("9.9.9");
        let mut older = client("10.0.0.7:12300", "h7", 9);
        older["software"] = json!("mooncake-client 0.0.7");
        status["clients"].as_array_mut().unwrap().push(older);
        let found = judge(&broken::pool(status));
        told::is(&found, "version", Severity::Warning, &["9.9.9", VERSION, "PATH/mooncake_rs-VERSION-*.whl"]);
        told::is(&found, "member_versions", Severity::Warning, &["1 of 0.0.7 (10.0.0.7:12300 on h7)", VERSION]);
    }
}
