//! What a check says: how bad it is, with its values, and what mends it.

use crate::terminal::plain;

/// How bad it is. What is worse comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Calls fail, or objects will be lost.
    Error,
    /// It works, and not as well as it could.
    Warning,
    /// It could not be looked at.
    Skipped,
    /// It is well.
    Ok,
}

impl Severity {
    /// From the worst on.
    pub const ALL: [Severity; 4] = [Severity::Error, Severity::Warning, Severity::Skipped, Severity::Ok];

    /// For scripts.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Skipped => "skipped",
            Severity::Ok => "ok",
        }
    }
}

/// What a check is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Area {
    /// The master, and what it says of its pool.
    Master,
    /// How processes reach each other.
    Addresses,
    /// Which processes of this host share memory with this one.
    SharedMemory,
    /// What the kernel lets a process have.
    Limits,
    /// The clocks.
    Clock,
    /// The master's log, and where it lies.
    State,
    /// What is installed, and the variables that it reads.
    Installation,
}

impl Area {
    /// In the order in which they are told.
    pub const ALL: [Area; 7] =
        [Area::Master, Area::Addresses, Area::SharedMemory, Area::Limits, Area::Clock, Area::State, Area::Installation];

    /// As people and scripts read it.
    pub fn name(self) -> &'static str {
        match self {
            Area::Master => "master",
            Area::Addresses => "addresses",
            Area::SharedMemory => "shared memory",
            Area::Limits => "limits",
            Area::Clock => "clock",
            Area::State => "state",
            Area::Installation => "installation",
        }
    }
}

/// What one check says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What it is about.
    pub area: Area,
    /// Name of the check, for scripts.
    pub check: String,
    /// How bad it is.
    pub severity: Severity,
    /// What is so, with its values.
    pub message: String,
    /// The command or the setting that mends it.
    pub remedy: Option<String>,
}

/// What the checks of one area say.
#[derive(Debug)]
pub struct Findings {
    area: Area,
    all: Vec<Finding>,
}

impl Findings {
    /// Nothing yet.
    pub fn of(area: Area) -> Findings {
        Findings { area, all: Vec::new() }
    }

    /// It is well.
    pub fn ok(&mut self, check: &str, message: impl AsRef<str>) {
        self.add(Severity::Ok, check, message.as_ref(), None);
    }

    /// It is well, and could be better.
    pub fn hint(&mut self, check: &str, message: impl AsRef<str>, remedy: impl AsRef<str>) {
        self.add(Severity::Ok, check, message.as_ref(), Some(remedy.as_ref()));
    }

    /// It was not looked at.
    pub fn skip(&mut self, check: &str, message: impl AsRef<str>) {
        self.add(Severity::Skipped, check, message.as_ref(), None);
    }

    /// It works, and not as it should.
    pub fn warn(&mut self, check: &str, message: impl AsRef<str>, remedy: impl AsRef<str>) {
        self.add(Severity::Warning, check, message.as_ref(), Some(remedy.as_ref()));
    }

    /// It does not work.
    pub fn error(&mut self, check: &str, message: impl AsRef<str>, remedy: impl AsRef<str>) {
        self.add(Severity::Error, check, message.as_ref(), Some(remedy.as_ref()));
    }

    /// All of them, the worst first.
    pub fn sorted(mut self) -> Vec<Finding> {
        self.all.sort_by_key(|finding| finding.severity);
        self.all
    }

    fn add(&mut self, severity: Severity, check: &str, message: &str, remedy: Option<&str>) {
        // Names of members, of files and of variables are in it, which others have chosen.
        let (check, message) = (plain(check), plain(message));
        let remedy = remedy.map(plain).filter(|remedy| !remedy.is_empty());
        self.all.push(Finding { area: self.area, check, severity, message, remedy });
    }
}

/// What the tests of checks ask of findings.
#[cfg(test)]
pub mod told {
    use super::{Finding, Severity};

    /// The one finding of that check.
    pub fn of<'a>(findings: &'a [Finding], check: &str) -> &'a Finding {
        let all: Vec<&Finding> = findings.iter().filter(|finding| finding.check == check).collect();
        assert_eq!(all.len(), 1, "{check} in {findings:#?}");
        all[0]
    }

    /// That the one finding of that check is so bad, and says all of these. What is wrong has a remedy.
    pub fn is(findings: &[Finding], check: &str, severity: Severity, says: &[&str]) {
        let finding = of(findings, check);
        assert_eq!(finding.severity, severity, "{finding:#?}");
        let said = format!("{}\n{}", finding.message, finding.remedy.as_deref().unwrap_or(""));
        for part in says {
            assert!(said.contains(part), "{part:?} in {said:?}");
        }
        assert!(severity > Severity::Warning || finding.remedy.is_some(), "{finding:#?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_worse_comes_first_and_what_others_say_moves_no_cursor() {
        let mut found = Findings::of(Area::Clock);
        found.ok("a", "well");
        found.warn("b", "odd \x1b[2J", "do \u{202e}this");
        found.skip("c", "not looked at");
        found.error("d", "wrong", "");
        let all = found.sorted();
        let order: Vec<&str> = all.iter().map(|finding| &finding.check[..]).collect();
        assert_eq!(order, ["d", "b", "c", "a"]);
        assert_eq!(all[1].message, "odd \\u{1b}[2J");
        assert_eq!(all[1].remedy.as_deref(), Some("do \\u{202e}this"));
        assert_eq!(all[0].remedy, None);
    }
}
