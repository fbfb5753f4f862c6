//! What is wrong with a program, as its pages tell it: what its operator is to see first.

use serde::Serialize;

/// How bad it is. What is worse comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Data will be lost, or requests fail.
    Error,
    /// It is slower, or does less, than it could.
    Warning,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// For scripts.
    pub code: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub remedy: &'static str,
}

impl Problem {
    /// Requests fail, or will.
    pub fn error(code: &'static str, message: String, remedy: &'static str) -> Problem {
        Problem { code, severity: Severity::Error, message, remedy }
    }

    /// It could be better.
    pub fn warning(code: &'static str, message: String, remedy: &'static str) -> Problem {
        Problem { code, severity: Severity::Warning, message, remedy }
    }
}
