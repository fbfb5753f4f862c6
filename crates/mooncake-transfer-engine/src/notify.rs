//! Short messages from engine to engine, kept until the receiver takes them.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// Most messages kept; the oldest go first.
const NOTIFIES_MAX: usize = 65_536;

/// Most bytes of all of them.
const NOTIFIES_BYTES_MAX: usize = 64 << 20;

/// A message: a name and a text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Notify {
    /// Its name.
    pub name: String,
    /// Its text.
    pub message: String,
}

impl Notify {
    fn bytes(&self) -> usize {
        self.name.len() + self.message.len()
    }
}

/// Messages that have come.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Notify>,
    bytes: usize,
    lost: u64,
}

impl Inbox {
    pub fn push(&self, notify: Notify) {
        let mut state = self.state.lock();
        state.bytes += notify.bytes();
        state.queue.push_back(notify);
        while state.queue.len() > NOTIFIES_MAX || state.bytes > NOTIFIES_BYTES_MAX {
            let Some(oldest) = state.queue.pop_front() else { break };
            state.bytes -= oldest.bytes();
            state.lost += 1;
            if state.lost.is_power_of_two() {
                tracing::warn!(
                    lost = state.lost,
                    "notifications come faster than they are taken; the oldest are dropped"
                );
            }
        }
    }

    pub fn take(&self) -> Vec<Notify> {
        let mut state = self.state.lock();
        state.bytes = 0;
        std::mem::take(&mut state.queue).into()
    }
}
