//! Findings for people and for scripts.

use std::fmt::Write;

use serde_json::{Value, json};

use super::finding::{Area, Finding, Severity};
use super::wheel::VERSION;
use crate::terminal::{Paint, plain};

/// How many there are of each.
fn count(findings: &[Finding], severity: Severity) -> usize {
    findings.iter().filter(|finding| finding.severity == severity).count()
}

/// What the command says of all: `error`, `warning` or `ok`.
pub fn worst(findings: &[Finding]) -> Severity {
    let worst = findings.iter().map(|finding| finding.severity).min();
    worst.filter(|severity| *severity < Severity::Skipped).unwrap_or(Severity::Ok)
}

/// A word at the beginning of a line, so that no colour is needed to tell.
fn mark(severity: Severity, paint: Paint) -> String {
    match severity {
        Severity::Error => paint.red("x   "),
        Severity::Warning => paint.yellow("!   "),
        Severity::Skipped => paint.dim("-   "),
        Severity::Ok => paint.green("ok  "),
    }
}

/// For people: area by area, and what mends it below each.
pub fn screen(findings: &[Finding], master: &str, paint: Paint) -> String {
    let mut out = format!("mooncake doctor {VERSION}, master {}\n", plain(master));
    for area in Area::ALL {
        let _ = writeln!(out, "\n{}", paint.bold(area.name()));
        for finding in findings.iter().filter(|finding| finding.area == area) {
            let _ = writeln!(out, "  {}{}", mark(finding.severity, paint), finding.message);
            if let Some(remedy) = &finding.remedy {
                let _ = writeln!(out, "      {} {remedy}", paint.dim("->"));
            }
        }
    }
    let _ = writeln!(out, "\n{}", total(findings, paint));
    out
}

fn total(findings: &[Finding], paint: Paint) -> String {
    let of = |severity: Severity, one: &str, several: &str| {
        let count = count(findings, severity);
        format!("{count} {}", if count == 1 { one } else { several })
    };
    let (errors, warnings) = (of(Severity::Error, "error", "errors"), of(Severity::Warning, "warning", "warnings"));
    let rest = format!("{}, {}", of(Severity::Ok, "well", "well"), of(Severity::Skipped, "not known", "not known"));
    match worst(findings) {
        Severity::Error => format!("{}, {warnings}; {rest}", paint.red(&errors)),
        Severity::Warning => format!("{errors}, {}; {rest}", paint.yellow(&warnings)),
        _ => format!("{}; {rest}", paint.green("all is well")),
    }
}

/// For scripts: everything.
pub fn as_json(findings: &[Finding], master: &str) -> Value {
    let all: Vec<Value> = findings
        .iter()
        .map(|finding| {
            json!({
                "area": finding.area.name(),
                "check": finding.check,
                "severity": finding.severity.name(),
                "message": finding.message,
                "remedy": finding.remedy,
            })
        })
        .collect();
    let counts: serde_json::Map<String, Value> = Severity::ALL
        .into_iter()
        .map(|severity| (severity.name().to_owned(), count(findings, severity).into()))
        .collect();
    json!({
        "version": VERSION, "master": master, "worst": worst(findings).name(), "counts": counts, "findings": all,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Findings;

    fn findings() -> Vec<Finding> {
        let mut found = Findings::of(Area::Clock);
        found.ok("a", "it is well");
        found.error("b", "it is wrong", "mend it");
        found.warn("c", "it is odd", "look");
        found.skip("d", "not looked at");
        found.sorted()
    }

    #[test]
    fn people_see_what_is_wrong_first_with_what_mends_it_and_need_no_colour_for_that() {
        let out = screen(&findings(), "h:1\x1b[2J", Paint(false));
        let clock = "\nclock\n  x   it is wrong\n      -> mend it\n  !   it is odd\n      -> look\n  \
                     -   not looked at\n  ok  it is well\n";
        assert!(out.contains(clock), "{out}");
        assert!(out.ends_with("\n1 error, 1 warning; 1 well, 1 not known\n"), "{out}");
        assert!(!out.contains('\x1b'), "{out}");
        assert!(screen(&[], "h:1", Paint(false)).ends_with("\nall is well; 0 well, 0 not known\n"));
        assert!(screen(&findings(), "h:1", Paint(true)).contains("\x1b[31mx   \x1b[0m"));
    }

    #[test]
    fn scripts_have_everything() {
        let json = as_json(&findings(), "h:1");
        assert_eq!(json["counts"], json!({"error": 1, "warning": 1, "skipped": 1, "ok": 1}));
        assert_eq!(
            (&json["worst"], &json["master"], &json["version"]),
            (&json!("error"), &json!("h:1"), &json!(VERSION))
        );
        let expected =
            json!({"area": "clock", "check": "b", "severity": "error", "message": "it is wrong", "remedy": "mend it"});
        assert_eq!(json["findings"][0], expected);
        assert_eq!(json["findings"][3]["remedy"], Value::Null);
        assert_eq!(worst(&findings()[2..]), Severity::Ok, "what was not looked at is no fault");
    }
}
