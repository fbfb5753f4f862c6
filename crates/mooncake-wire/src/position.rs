//! Whose log a position is of.

use crate::message::LogPosition;

impl LogPosition {
    /// Whether both are of one log: they have one log id, or are of one epoch. An epoch begins in one process, which
    /// goes on under another log id where it has lost the file; whatever else goes on with a copy begins an epoch of
    /// its own.
    pub fn is_of_log_of(&self, other: &LogPosition) -> bool {
        let is_one_epoch = self.epoch_id != 0 && (self.epoch, self.epoch_id) == (other.epoch, other.epoch_id);
        self.log_id == other.log_id || is_one_epoch
    }
}
