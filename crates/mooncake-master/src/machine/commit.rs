//! From an operation to what is told of it: its records are in the log, and the log's witness says so, before a
//! position is shown, a message or the answer to a parked request goes out, or the operation is answered.

use mooncake_core::{Effects, Epoch, Record, To};
use mooncake_mutant::mutant;

use super::delivery::Delivery;

/// Room for more deliveries than these is not kept between commits.
const DELIVERIES_KEPT: usize = 1024;

/// What operations left behind that have not been committed, in their order. `F` holds the frames of their records.
#[derive(Debug)]
pub struct Queue<F> {
    batch: Batch<F>,
    number: u64,
    lsn: u64,
    raised: Option<Epoch>,
}

/// What is committed together.
#[derive(Debug, Default)]
pub struct Batch<F> {
    /// What goes to the log.
    pub frames: F,
    deliveries: Vec<Delivery>,
}

/// Where a batch ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Number of its last operation.
    pub number: u64,
    /// LSN of its last frame.
    pub lsn: u64,
    /// The epoch that its records begin, which is to be on the disk before the first rid of that goes out.
    pub raised: Option<Epoch>,
}

impl<F: Default> Queue<F> {
    /// Of a log that ends at this LSN.
    pub fn new(lsn: u64) -> Queue<F> {
        Queue { batch: Batch { frames: F::default(), deliveries: Vec::new() }, number: 0, lsn, raised: None }
    }
}

impl<F> Queue<F> {
    /// LSN behind every operation so far.
    pub fn lsn(&self) -> u64 {
        self.lsn
    }

    /// Frames that wait for a commit.
    pub fn frames(&mut self) -> &mut F {
        &mut self.batch.frames
    }

    /// Takes what an operation left behind, and numbers it: what to wait for before it is answered. Its records, if
    /// there are any, become one frame, which is told its LSN and the epoch that they begin.
    pub fn push(&mut self, effects: &mut Effects, frame: impl FnOnce(&mut F, &[Record], u64, Option<Epoch>)) -> u64 {
        self.number += 1;
        if !effects.records.is_empty() {
            self.lsn += 1;
            let raised = effects.records.iter().fold(Epoch::default(), Epoch::after);
            let raised = (raised.number != 0).then_some(raised);
            self.raised = raised.or(self.raised);
            frame(&mut self.batch.frames, &effects.records, self.lsn, raised);
        }
        let deliveries = &mut self.batch.deliveries;
        deliveries.extend(effects.pushes.drain(..).map(|(to, push)| match to {
            To::Session(session) => Delivery::Push(session, push),
            To::Everybody => Delivery::Broadcast(push),
        }));
        deliveries.extend(effects.woken.drain(..).map(|(ticket, outcomes)| Delivery::Wake(ticket, outcomes)));
        effects.records.clear();
        self.number
    }

    /// Where a batch of all that waits would end.
    pub fn end(&self) -> End {
        End { number: self.number, lsn: self.lsn, raised: self.raised }
    }

    /// Takes all that waits; `spare`, which is empty, is filled next.
    pub fn take(&mut self, spare: &mut Batch<F>) -> End {
        std::mem::swap(&mut self.batch, spare);
        let end = self.end();
        self.raised = None;
        end
    }
}

/// What a commit needs of its master.
pub trait CommitDriver {
    /// Frames of records.
    type Frames;

    /// Why nothing is committed any more.
    type Closed;

    /// Has these frames in the log, and the log's witness say so.
    fn append(&mut self, frames: &mut Self::Frames, end: End) -> Result<(), Self::Closed>;

    /// From now on replies tell this position.
    fn show(&mut self, lsn: u64);

    /// Sends one thing where it belongs.
    fn deliver(&mut self, delivery: Delivery);

    /// Operations up to this number may be answered.
    fn done(&mut self, number: u64);
}

/// Commits what was [taken](Queue::take). Where it fails, nothing is told.
pub fn commit<D: CommitDriver>(driver: &mut D, batch: &mut Batch<D::Frames>, end: End) -> Result<(), D::Closed> {
    if mutant!(ToldBeforeLogged) {
        tell(driver, batch, end);
    }
    driver.append(&mut batch.frames, end)?;
    tell(driver, batch, end);
    if batch.deliveries.capacity() > DELIVERIES_KEPT {
        batch.deliveries = Vec::new();
    }
    Ok(())
}

fn tell<D: CommitDriver>(driver: &mut D, batch: &mut Batch<D::Frames>, end: End) {
    driver.show(end.lsn);
    for delivery in batch.deliveries.drain(..) {
        driver.deliver(delivery);
    }
    driver.done(end.number);
}

#[cfg(test)]
mod tests {
    use mooncake_core::{Push, Ticket};
    use mooncake_ids::{Rid, SessionId};

    use super::*;

    const SECOND: Epoch = Epoch { number: 2, id: 0 };
    const THIRD: Epoch = Epoch { number: 3, id: 0 };

    #[derive(Default)]
    struct Script {
        did: Vec<String>,
        fails: bool,
    }

    impl CommitDriver for Script {
        type Frames = Vec<u64>;
        type Closed = ();

        fn append(&mut self, frames: &mut Vec<u64>, end: End) -> Result<(), ()> {
            self.did.push(format!("append {frames:?} {:?}", end.raised.map(|epoch| epoch.number)));
            frames.clear();
            if self.fails { Err(()) } else { Ok(()) }
        }

        fn show(&mut self, lsn: u64) {
            self.did.push(format!("show {lsn}"));
        }

        fn deliver(&mut self, delivery: Delivery) {
            self.did.push(match delivery {
                Delivery::Push(session, _) => format!("push {}", session.0),
                Delivery::Broadcast(_) => "broadcast".to_owned(),
                Delivery::Wake(ticket, _) => format!("wake {}", ticket.0),
            });
        }

        fn done(&mut self, number: u64) {
            self.did.push(format!("done {number}"));
        }
    }

    fn effects(records: &[Record], push: Option<u64>, wake: Option<u64>) -> Effects {
        Effects {
            records: records.to_vec(),
            pushes: push
                .into_iter()
                .map(|session| (To::Session(SessionId(session)), Push::SessionOver("over".into())))
                .collect(),
            woken: wake.map(|ticket| (Ticket(ticket), Vec::new())).into_iter().collect(),
        }
    }

    /// Frames are their LSNs.
    fn push(queue: &mut Queue<Vec<u64>>, mut effects: Effects) -> (u64, Option<Epoch>) {
        let mut begun = None;
        let number = queue.push(&mut effects, |frames, _, lsn, raised| {
            frames.push(lsn);
            begun = raised;
        });
        assert!(effects.is_empty(), "the next operation begins with nothing");
        (number, begun)
    }

    #[test]
    fn all_records_are_in_the_log_before_anything_is_told_and_all_is_told_before_an_answer() {
        let (mut queue, mut script) = (Queue::new(40), Script::default());
        let dropped = [Record::Dropped(Rid(2))];
        assert_eq!(push(&mut queue, effects(&dropped, Some(1), Some(7))), (1, None));
        assert_eq!(push(&mut queue, effects(&[], Some(2), None)), (2, None), "without records");
        assert_eq!(push(&mut queue, effects(&dropped, Some(3), None)), (3, None));
        let mut batch = Batch::default();
        let end = queue.take(&mut batch);
        assert_eq!((end, queue.lsn()), (End { number: 3, lsn: 42, raised: None }, 42));
        commit(&mut script, &mut batch, end).unwrap();
        let expected = ["append [41, 42] None", "show 42", "push 1", "wake 7", "push 2", "push 3", "done 3"];
        assert_eq!(script.did, expected);
        // Once.
        script.did.clear();
        push(&mut queue, effects(&dropped, None, None));
        let end = queue.take(&mut batch);
        commit(&mut script, &mut batch, end).unwrap();
        assert_eq!(script.did, ["append [43] None", "show 43", "done 4"]);
    }

    #[test]
    fn what_could_not_be_logged_is_not_told() {
        let (mut queue, mut script) = (Queue::new(0), Script { fails: true, ..Script::default() });
        push(&mut queue, effects(&[Record::Dropped(Rid(2))], Some(1), Some(7)));
        let mut batch = Batch::default();
        let end = queue.take(&mut batch);
        commit(&mut script, &mut batch, end).unwrap_err();
        assert_eq!(script.did, ["append [1] None"]);
    }

    #[test]
    fn the_last_epoch_that_a_batch_begins_is_named_with_it_and_not_again() {
        let mut queue = Queue::new(0);
        assert_eq!(push(&mut queue, effects(&[Record::Epoch(2)], None, None)).1, Some(SECOND));
        assert_eq!(push(&mut queue, effects(&[Record::Epoch(3), Record::Dropped(Rid(2))], None, None)).1, Some(THIRD));
        assert_eq!(push(&mut queue, effects(&[Record::Dropped(Rid(4))], None, None)).1, None);
        let mut batch = Batch::default();
        assert_eq!(queue.take(&mut batch), End { number: 3, lsn: 3, raised: Some(THIRD) });
        assert_eq!(queue.take(&mut Batch::default()).raised, None);
    }
}
