//! Short messages from engine to engine, kept until somebody asks.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// Most messages kept; the oldest go first.
const MOST: usize = 65_536;

/// Most bytes of all of them.
const MOST_BYTES: usize = 64 << 20;

/// A message: a name and a text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Notify {
    /// What it is about.
    pub name: String,
    /// What it says.
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
        while state.queue.len() > MOST || state.bytes > MOST_BYTES {
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
