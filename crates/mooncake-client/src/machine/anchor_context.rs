//! What the anchor shares with the threads that call the store.

use mooncake_wire::message::{AnchorUp, LogPosition};

use super::deaths::Deaths;
use super::pins::Pins;
use super::position::raise;
use super::progress::Progress;
use super::reachability::Reachability;
use super::sequences::Sequences;
use super::wants::Wants;

/// All of it at once, for as long as the anchor decides something. A driver with locks around these fields takes them
/// in the order in which they stand here.
#[derive(Debug)]
pub struct AnchorContext<'a> {
    /// Views.
    pub pins: &'a mut Pins,
    /// Mutations.
    pub sequences: &'a mut Sequences,
    /// Puts under way.
    pub progress: &'a mut Progress,
    /// Readers of this store's memory that have ended.
    pub deaths: &'a mut Deaths,
    /// The highest position in the log that this store has seen.
    pub position: &'a mut LogPosition,
    /// Messages for the master that wait for the anchor.
    pub up: &'a mut Vec<AnchorUp>,
    /// Whether the master answers.
    pub reachability: &'a Reachability,
    /// What other threads want.
    pub wants: &'a Wants,
}

impl AnchorContext<'_> {
    /// A master has shown a position.
    pub(super) fn note(&mut self, seen: &LogPosition) {
        if raise(self.position, seen) {
            self.wants.resume();
        }
    }

    /// Messages that did not get through come before the ones that wait.
    pub(super) fn put_back(&mut self, mut messages: Vec<AnchorUp>) {
        messages.append(self.up);
        *self.up = messages;
    }
}
