//! Whose log a position is of.

use crate::message::LogPosition;

impl LogPosition {
    /// Whether both are of one log: they have its id, or are of one reign. A reign begins in one process, which goes on
    /// under another id where it has lost the file; whatever else goes on with a copy begins a reign of its own.
    pub fn is_of_log_of(&self, other: &LogPosition) -> bool {
        let is_one_reign = self.reign != 0 && (self.epoch, self.reign) == (other.epoch, other.reign);
        self.log_id == other.log_id || is_one_reign
    }
}
