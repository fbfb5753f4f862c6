//! What a check found, where, and what mends it.

use std::fmt;

/// One finding, printed as `path:line: what; remedy`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    path: String,
    line: usize,
    what: String,
    remedy: String,
}

impl Fault {
    /// A line of 0 is no line: the file as a whole.
    pub fn new(path: impl Into<String>, line: usize, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { path: path.into(), line, what: what.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.path)?;
        if self.line > 0 {
            write!(f, "{}:", self.line)?;
        }
        write!(f, " {}; {}", self.what, self.remedy)
    }
}
