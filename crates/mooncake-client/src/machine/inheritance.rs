//! Memory that its process left behind: how another one comes to it.
//!
//! Beside the memory lies its *state*, shared like it. A process that owns the memory has the state locked, by an open
//! file of its own, from before it touches either until its end; the kernel ends the lock behind the last access of the
//! process to its memory. So the lock is both: the proof that the predecessor has ended, and the promise that no other
//! heir comes. What the state says is read under the lock: another heir may have come and gone before.

use std::time::Duration;

use mooncake_mutant::mutant;
use mooncake_segment::Epoch;
use mooncake_segment::machine::Tenure;

/// How long a process waits for the end of its predecessor before it makes memory of its own.
const LOCK_WAIT: Duration = Duration::from_secs(30);

/// Between two tries to lock the state.
const LOCK_RETRY: Duration = Duration::from_millis(100);

/// What the state of kept memory says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// Boot that the memory is of.
    pub boot_id: [u8; 16],
    /// What its heirs show to a master.
    pub secret: [u8; 16],
    /// How manieth owner the last one was.
    pub tenure: u32,
    /// The epoch that it had taken: written down before it said so.
    pub taken: Epoch,
}

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Try to lock the state, and read it if that is done: [`Inheritance::lock_tried`].
    Lock,
    /// Nothing before then.
    Wait(Duration),
    /// Write this into the state: [`Inheritance::written`].
    Write(State),
    /// Let processes in, as this owner, and claim the segments from a master, each time with [`Inheritance::turn`].
    Own(Tenure),
    /// Make new memory. The lock, if there is one, is given up.
    Renounce(Why),
}

/// Why memory is not taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Its owner has not ended, or another process is its heir.
    Owned,
    /// It is of another boot, which cannot be.
    OtherBoot,
}

/// A process that found kept memory.
#[derive(Debug)]
pub struct Inheritance {
    boot_id: [u8; 16],
    began: Duration,
    step: Step,
    claims: u32,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Lock { next: Duration },
    Write(State),
    Own(Tenure),
    Renounce(Why),
}

impl Inheritance {
    /// Begins now, on this boot of the host.
    pub fn new(now: Duration, boot_id: [u8; 16]) -> Inheritance {
        Inheritance { boot_id, began: now, step: Step::Lock { next: now }, claims: 0 }
    }

    /// What is to be done.
    pub fn next(&self, now: Duration) -> Next {
        match self.step {
            Step::Lock { next } if next > now => Next::Wait(next),
            Step::Lock { .. } => Next::Lock,
            Step::Write(state) if mutant!(TenureIsNotWritten) => {
                Next::Write(State { tenure: state.tenure - 1, ..state })
            }
            Step::Write(state) => Next::Write(state),
            Step::Own(tenure) => Next::Own(tenure),
            Step::Renounce(why) => Next::Renounce(why),
        }
    }

    /// The state, as it was read behind the try, and whether the lock was to be had: another process may have it.
    pub fn lock_tried(&mut self, now: Duration, has_lock: bool, state: State) {
        self.step = match (has_lock || mutant!(StateIsNotLocked)).then_some(state) {
            None if now >= self.began + LOCK_WAIT => Step::Renounce(Why::Owned),
            None => Step::Lock { next: now + LOCK_RETRY },
            Some(state) if state.boot_id != self.boot_id => Step::Renounce(Why::OtherBoot),
            // Before anything is let in: the next heir must not take the locks of this tenure for those of its own.
            Some(state) => Step::Write(State { tenure: state.tenure + 1, ..state }),
        };
    }

    /// The state has been written.
    pub fn written(&mut self) {
        if let Step::Write(State { tenure: number, taken, .. }) = self.step {
            self.step = Step::Own(Tenure { number, taken });
        }
    }

    /// The turn of the next claim: above those of earlier owners, whose claims may come late, and of this one's.
    pub fn turn(&mut self) -> u64 {
        self.claims += 1;
        let Step::Own(Tenure { number, .. }) = self.step else { return 0 };
        u64::from(number) << 32 | u64::from(self.claims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: [u8; 16] = [1; 16];
    const STATE: State = State { boot_id: BOOT, secret: [2; 16], tenure: 3, taken: Epoch { number: 4, id: 5 } };

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn memory_is_owned_behind_the_lock_and_once_it_has_the_tenure() {
        let mut heir = Inheritance::new(at(0), BOOT);
        assert_eq!(heir.next(at(0)), Next::Lock);
        heir.lock_tried(at(0), false, STATE);
        assert_eq!((heir.next(at(1)), heir.next(at(100))), (Next::Wait(at(100)), Next::Lock));
        heir.lock_tried(at(100), true, STATE);
        let written = State { tenure: 4, ..STATE };
        assert_eq!(heir.next(at(100)), Next::Write(written), "another heir was there before");
        heir.written();
        let tenure = Tenure { number: 4, taken: STATE.taken };
        assert_eq!(heir.next(at(100)), Next::Own(tenure));
        let turns = [heir.turn(), heir.turn()];
        assert_eq!(turns, [4 << 32 | 1, 4 << 32 | 2]);
    }

    #[test]
    fn what_its_owner_does_not_let_go_of_is_left_to_it() {
        let mut heir = Inheritance::new(at(5), BOOT);
        heir.lock_tried(at(30_004), false, STATE);
        assert_eq!(heir.next(at(30_104)), Next::Lock);
        heir.lock_tried(at(30_104), false, STATE);
        assert_eq!(heir.next(at(30_105)), Next::Renounce(Why::Owned));
    }

    #[test]
    fn no_memory_is_of_another_boot() {
        let mut heir = Inheritance::new(at(0), [9; 16]);
        heir.lock_tried(at(0), true, STATE);
        assert_eq!(heir.next(at(0)), Next::Renounce(Why::OtherBoot));
    }
}
