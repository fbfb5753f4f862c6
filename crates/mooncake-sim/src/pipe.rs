//! Connections: what is sent arrives in order and whole, later, or the connection ends.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::task::Poll;

use crate::world::{TaskId, World};

/// The other end has gone, or the network between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed;

/// What sends into one direction of a connection. When it is dropped the other end learns that, behind all that was
/// sent.
pub struct Sender<T: 'static> {
    world: World,
    line: Rc<RefCell<Line<T>>>,
}

/// What hears it.
pub struct Receiver<T: 'static> {
    world: World,
    line: Rc<RefCell<Line<T>>>,
}

struct Line<T> {
    /// Microseconds.
    delay: u64,
    made_at: u64,
    /// Nothing arrives before what was sent before it.
    last_arrival: u64,
    arrived: VecDeque<T>,
    waiting: Option<TaskId>,
    /// The sender's end, or the network's, has become known to the receiver.
    ended: bool,
    /// Nothing that is sent arrives any more.
    cut: bool,
    /// Nor what was under way.
    lost: bool,
    /// The receiver is no more.
    deaf: bool,
}

/// One direction of a connection whose messages take so long, each a little more or less.
pub fn pipe<T: 'static>(world: &World, delay_micros: u64) -> (Sender<T>, Receiver<T>) {
    let line = Line {
        delay: delay_micros,
        made_at: world.micros(),
        last_arrival: 0,
        arrived: VecDeque::new(),
        waiting: None,
        ended: false,
        cut: false,
        lost: false,
        deaf: false,
    };
    let line = Rc::new(RefCell::new(line));
    (Sender { world: world.clone(), line: line.clone() }, Receiver { world: world.clone(), line })
}

impl<T: 'static> Sender<T> {
    /// Sends. The sender cannot know whether it arrives.
    pub fn send(&self, message: T) -> Result<(), Closed> {
        let mut line = self.line.borrow_mut();
        if line.deaf || line.ended {
            return Err(Closed);
        }
        if line.cut {
            // As with a network that is gone: the kernel takes it, and nothing comes of it.
            return Ok(());
        }
        let at = line.next_arrival(&self.world);
        let (weak, world) = (Rc::downgrade(&self.line), self.world.clone());
        drop(line);
        self.world.after(at - self.world.micros(), move || arrive(&weak, &world, Some(message)));
        Ok(())
    }

    /// What can cut this direction later on.
    pub fn cutter(&self) -> impl Fn() + 'static {
        let (line, world) = (Rc::downgrade(&self.line), self.world.clone());
        move || cut(&line, &world)
    }

    /// The other end has closed.
    pub fn is_closed(&self) -> bool {
        let line = self.line.borrow();
        line.deaf || line.ended
    }
}

impl<T> Line<T> {
    fn next_arrival(&mut self, world: &World) -> u64 {
        let at = world.micros() + self.delay / 2 + world.below(self.delay.max(1));
        self.last_arrival = self.last_arrival.max(at);
        self.last_arrival
    }
}

fn arrive<T>(line: &Weak<RefCell<Line<T>>>, world: &World, message: Option<T>) {
    let Some(line) = line.upgrade() else { return };
    let mut line = line.borrow_mut();
    if line.ended {
        return;
    }
    match message {
        Some(_) if line.lost => return,
        Some(message) => line.arrived.push_back(message),
        None => line.ended = true,
    }
    if let Some(task) = line.waiting.take() {
        world.wake(task);
    }
}

/// What is under way may be lost, and both ends find out, sooner or later.
fn cut<T: 'static>(weak: &Weak<RefCell<Line<T>>>, world: &World) {
    let Some(line) = weak.upgrade() else { return };
    if std::mem::replace(&mut line.borrow_mut().cut, true) {
        return;
    }
    line.borrow_mut().lost = world.percent(50);
    let (weak, inside) = (weak.clone(), world.clone());
    world.after(2_000 + world.below(300_000), move || arrive(&weak, &inside, None));
}

impl<T: 'static> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut line = self.line.borrow_mut();
        if line.cut || line.ended {
            return;
        }
        let at = line.next_arrival(&self.world).max(self.world.held_open(line.made_at));
        let (weak, world) = (Rc::downgrade(&self.line), self.world.clone());
        drop(line);
        self.world.after(at - self.world.micros(), move || arrive(&weak, &world, None));
    }
}

impl<T: 'static> Receiver<T> {
    /// The next message.
    pub async fn next(&mut self) -> Result<T, Closed> {
        std::future::poll_fn(|_| {
            let mut line = self.line.borrow_mut();
            if let Some(message) = line.arrived.pop_front() {
                return Poll::Ready(Ok(message));
            }
            if line.ended {
                return Poll::Ready(Err(Closed));
            }
            line.waiting = Some(self.world.current());
            Poll::Pending
        })
        .await
    }

    /// Waits until the other end has gone.
    pub async fn closed(&self) {
        std::future::poll_fn(|_| {
            let mut line = self.line.borrow_mut();
            if line.ended {
                return Poll::Ready(());
            }
            line.waiting = Some(self.world.current());
            Poll::Pending
        })
        .await
    }

    /// The next message, if it is there.
    pub fn try_next(&mut self) -> Option<T> {
        self.line.borrow_mut().arrived.pop_front()
    }
}

impl<T: 'static> Drop for Receiver<T> {
    fn drop(&mut self) {
        let until = self.world.held_open(self.line.borrow().made_at);
        if until <= self.world.micros() {
            self.line.borrow_mut().deaf = true;
            return;
        }
        // What is sent until then no process reads, and none refuses it.
        let line = Rc::downgrade(&self.line);
        self.world.after(until - self.world.micros(), move || {
            if let Some(line) = line.upgrade() {
                line.borrow_mut().deaf = true;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::world::{HostId, ProcessId};

    fn listen(world: &World, process: ProcessId, mut receiver: Receiver<u64>) -> Rc<RefCell<Vec<Result<u64, Closed>>>> {
        let heard: Rc<RefCell<Vec<_>>> = Rc::default();
        let ear = heard.clone();
        world.spawn(process, async move {
            loop {
                let next = receiver.next().await;
                ear.borrow_mut().push(next);
                if next.is_err() {
                    break;
                }
            }
        });
        heard
    }

    #[test]
    fn messages_arrive_in_order_and_the_senders_end_behind_them() {
        for seed in 1..50 {
            let world = World::new(seed);
            let process = world.start_process(HostId(1));
            let (sender, receiver) = pipe(&world, 1_000);
            let heard = listen(&world, process, receiver);
            (0..20).for_each(|number| sender.send(number).unwrap());
            drop(sender);
            world.run(Duration::from_secs(1));
            let expected: Vec<_> = (0..20).map(Ok).chain([Err(Closed)]).collect();
            assert_eq!(*heard.borrow(), expected);
        }
    }

    #[test]
    fn of_a_connection_that_is_cut_a_beginning_arrives_and_then_its_end() {
        let mut lengths = std::collections::BTreeSet::new();
        for seed in 1..50 {
            let world = World::new(seed);
            let process = world.start_process(HostId(1));
            let (sender, receiver) = pipe(&world, 10_000);
            let heard = listen(&world, process, receiver);
            (0..10).for_each(|number| sender.send(number).unwrap());
            let cut = sender.cutter();
            world.after(8_000, cut);
            world.run(Duration::from_micros(8_500));
            assert_eq!(sender.send(99), Ok(()), "nobody knows yet");
            world.run(Duration::from_secs(1));
            assert_eq!(sender.send(100), Err(Closed));
            let heard = heard.borrow();
            let (end, begun) = heard.split_last().unwrap();
            assert_eq!(*end, Err(Closed));
            assert!(begun.iter().enumerate().all(|(nth, heard)| *heard == Ok(nth as u64)));
            lengths.insert(begun.len());
        }
        assert!(lengths.len() > 2, "{lengths:?}");
    }

    #[test]
    fn what_nobody_hears_cannot_be_sent() {
        let world = World::new(1);
        let (sender, receiver) = pipe(&world, 1_000);
        drop(receiver);
        assert_eq!(sender.send(1), Err(Closed));
    }
}
