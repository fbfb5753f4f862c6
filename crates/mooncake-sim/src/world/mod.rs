//! Time, processes and what they do.
//!
//! A process does things in *tasks*: futures that wait for time, messages and each other. A frozen process goes on with
//! nothing until it is thawed; one that is killed stops between two steps, and what it had open is closed.

pub(crate) mod forks;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::dice::Dice;
use crate::world::forks::Forks;

/// A machine with processes: they share memory and see each other's ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostId(pub u8);

/// One life of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessId(pub u32);

/// Something that a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskId(u64);

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// The world. Clones are the same one.
#[derive(Clone)]
pub struct World {
    inner: Rc<Inner>,
}

struct Inner {
    seed: u64,
    /// Microseconds.
    now: Cell<u64>,
    order: Cell<u64>,
    /// By time in microseconds, and in the order in which it came.
    queue: RefCell<BTreeMap<(u64, u64), What>>,
    dice: RefCell<Dice>,
    processes: RefCell<BTreeMap<ProcessId, Process>>,
    next_process: Cell<u32>,
    tasks: RefCell<BTreeMap<TaskId, (ProcessId, Option<Task>)>>,
    next_task: Cell<u64>,
    current: Cell<Option<TaskId>>,
    loss: Cell<u64>,
    stalls: Cell<u64>,
    is_calm: Cell<bool>,
    forks: Forks,
    /// What is being dropped is of this process, though no task of it drops it.
    ending: Cell<Option<ProcessId>>,
    trace: Cell<u64>,
}

/// Of a hundred steps of tasks so many come late, by at most so many microseconds: other threads have the processor.
const PREEMPTED: (u64, u64) = (1, 20_000);

/// How long a task stands still at a place where that may do harm, at most, microseconds.
const STALLS: [u64; 3] = [20_000, 300_000, 3_000_000];

/// When a process goes on its tasks do so in any order, within so many microseconds.
const THAW_MICROS: u64 = 1_500;

/// How much longer messages take over one connection than over another one: some are congested, or lose packets.
const SLOWER: [u64; 20] = [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4, 4, 4, 4, 4, 40, 40, 40, 300];

struct Process {
    host: HostId,
    is_apart: bool,
    frozen_until: u64,
    tasks: Vec<TaskId>,
    /// Done when it ends, by the holders of a pidfd of it.
    watchers: Vec<Box<dyn FnOnce()>>,
}

enum What {
    Wake(TaskId),
    Do(Box<dyn FnOnce()>),
}

impl World {
    /// An empty one. It begins a second after its own zero.
    pub fn new(seed: u64) -> World {
        let inner = Inner {
            seed,
            now: Cell::new(1_000_000),
            order: Cell::new(0),
            queue: RefCell::default(),
            dice: RefCell::new(Dice::new(seed)),
            processes: RefCell::default(),
            next_process: Cell::new(1),
            tasks: RefCell::default(),
            next_task: Cell::new(1),
            current: Cell::new(None),
            loss: Cell::new(0),
            stalls: Cell::new(0),
            is_calm: Cell::new(false),
            forks: Forks::default(),
            ending: Cell::new(None),
            trace: Cell::new(0),
        };
        World { inner: Rc::new(inner) }
    }

    /// What everything here follows from.
    pub fn seed(&self) -> u64 {
        self.inner.seed
    }

    /// Since the world's zero.
    pub fn now(&self) -> Duration {
        Duration::from_micros(self.inner.now.get())
    }

    /// Microseconds since the world's zero.
    pub fn micros(&self) -> u64 {
        self.inner.now.get()
    }

    /// See [`Dice::below`].
    pub fn below(&self, bound: u64) -> u64 {
        self.inner.dice.borrow_mut().below(bound)
    }

    /// See [`Dice::percent`].
    pub fn percent(&self, chance: u64) -> bool {
        self.inner.dice.borrow_mut().percent(chance)
    }

    /// See [`Dice::number`].
    pub fn number(&self) -> u64 {
        self.inner.dice.borrow_mut().number()
    }

    /// So many calls of a hundred lose their connection.
    pub fn lose(&self, percent: u64) {
        self.inner.loss.set(percent);
    }

    /// So many of a hundred times a thread stands still at a place where that may do harm.
    pub fn stall_often(&self, percent: u64) {
        self.inner.stalls.set(percent);
    }

    pub(crate) fn loss(&self) -> u64 {
        self.inner.loss.get()
    }

    /// From here on no call is lost, new connections are fast, and no task comes late.
    pub fn calm(&self) {
        self.lose(0);
        self.inner.is_calm.set(true);
    }

    /// Whether nothing goes wrong any more.
    pub(crate) fn is_calm(&self) -> bool {
        self.inner.is_calm.get()
    }

    /// How long messages take over a connection that is made now, if such connections take so long, all in
    /// microseconds.
    pub(crate) fn delay(&self, usual: u64) -> u64 {
        if self.inner.is_calm.get() { usual } else { usual * SLOWER[self.below(SLOWER.len() as u64) as usize] }
    }

    /// Sometimes a thread stands still in the middle of what it does, and others of its process go on.
    pub(crate) async fn stall(&self) {
        if !self.inner.is_calm.get() && self.percent(self.inner.stalls.get()) {
            self.sleep_micros(self.below(STALLS[self.below(STALLS.len() as u64) as usize])).await;
        }
    }

    // -------------------------------------------------------------- processes

    /// A process begins.
    pub fn start_process(&self, host: HostId) -> ProcessId {
        let id = ProcessId(self.inner.next_process.replace(self.inner.next_process.get() + 1));
        let process = Process { host, is_apart: false, frozen_until: 0, tasks: Vec::new(), watchers: Vec::new() };
        self.inner.processes.borrow_mut().insert(id, process);
        id
    }

    /// It has a pid namespace of its own: the numbers of processes mean nothing there and of it.
    pub fn put_apart(&self, process: ProcessId) {
        if let Some(process) = self.inner.processes.borrow_mut().get_mut(&process) {
            process.is_apart = true;
        }
    }

    /// Whether it has.
    pub fn is_apart(&self, process: ProcessId) -> bool {
        self.inner.processes.borrow().get(&process).is_some_and(|process| process.is_apart)
    }

    /// The process ends between two steps. What it has sent still arrives.
    pub fn kill(&self, process: ProcessId) {
        let Some(ended) = self.inner.processes.borrow_mut().remove(&process) else { return };
        let tasks: Vec<_> = ended.tasks.iter().filter_map(|task| self.inner.tasks.borrow_mut().remove(task)).collect();
        // Dropping them closes what they had open, which is news to others.
        self.as_process(process, || drop(tasks));
        ended.watchers.into_iter().for_each(|watcher| watcher());
    }

    /// Whether it has not ended.
    pub fn is_alive(&self, process: ProcessId) -> bool {
        self.inner.processes.borrow().contains_key(&process)
    }

    /// Its host, as long as it lives.
    pub fn host_of(&self, process: ProcessId) -> Option<HostId> {
        self.inner.processes.borrow().get(&process).map(|process| process.host)
    }

    /// Has `then` done when the process ends: at once if it has ended.
    pub fn watch(&self, process: ProcessId, then: impl FnOnce() + 'static) {
        match self.inner.processes.borrow_mut().get_mut(&process) {
            Some(process) => process.watchers.push(Box::new(then)),
            None => self.after(0, then),
        }
    }

    /// It does nothing for so long.
    pub fn freeze(&self, process: ProcessId, micros: u64) {
        if let Some(process) = self.inner.processes.borrow_mut().get_mut(&process) {
            process.frozen_until = process.frozen_until.max(self.micros() + micros);
        }
    }

    /// Whether it stands still now.
    pub fn is_frozen(&self, process: ProcessId) -> bool {
        self.inner.processes.borrow().get(&process).is_some_and(|process| process.frozen_until > self.micros())
    }

    /// What `drop` drops was open in that process.
    pub(crate) fn as_process<R>(&self, process: ProcessId, drop: impl FnOnce() -> R) -> R {
        let before = self.inner.ending.replace(Some(process));
        let dropped = drop();
        self.inner.ending.set(before);
        dropped
    }

    /// The process that does what is being done, if one does it.
    pub(crate) fn acting(&self) -> Option<ProcessId> {
        let of_task = |task| self.inner.tasks.borrow().get(&task).map(|(process, _)| *process);
        self.inner.ending.get().or_else(|| self.inner.current.get().and_then(of_task))
    }

    pub(crate) fn forks(&self) -> &Forks {
        &self.inner.forks
    }

    // ------------------------------------------------------------------ tasks

    /// Has a process do something, from now on, beside what else it does.
    pub fn spawn(&self, process: ProcessId, task: impl Future<Output = ()> + 'static) {
        let mut processes = self.inner.processes.borrow_mut();
        let Some(of) = processes.get_mut(&process) else { return };
        let id = TaskId(self.inner.next_task.replace(self.inner.next_task.get() + 1));
        of.tasks.push(id);
        drop(processes);
        self.inner.tasks.borrow_mut().insert(id, (process, Some(Box::pin(task))));
        self.queue(self.micros(), What::Wake(id));
    }

    /// The task that is being polled.
    pub(crate) fn current(&self) -> TaskId {
        self.inner.current.get().expect("only tasks wait")
    }

    /// Has a task look again, now.
    pub(crate) fn wake(&self, task: TaskId) {
        self.queue(self.micros(), What::Wake(task));
    }

    /// Waits for so long.
    pub fn sleep(&self, time: Duration) -> Sleep {
        self.sleep_micros(time.as_micros() as u64)
    }

    /// The same in microseconds.
    pub fn sleep_micros(&self, micros: u64) -> Sleep {
        Sleep { world: self.clone(), at: self.micros().saturating_add(micros), queued: false }
    }

    /// Waits for a future, at most until a time; `None`: it was not ready by then.
    pub async fn until<F: Future>(&self, at: Duration, future: F) -> Option<F::Output> {
        let mut future = std::pin::pin!(future);
        let mut over = std::pin::pin!(self.sleep(at.saturating_sub(self.now())));
        std::future::poll_fn(move |context| match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => over.as_mut().poll(context).map(|()| None),
        })
        .await
    }

    /// Waits for the first of two futures.
    pub async fn race(&self, one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
        let (mut one, mut other) = (std::pin::pin!(one), std::pin::pin!(other));
        std::future::poll_fn(|context| match one.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => other.as_mut().poll(context),
        })
        .await
    }

    /// Has something done after some time, whatever becomes of the one that asks for it.
    pub fn after(&self, micros: u64, then: impl FnOnce() + 'static) {
        self.queue(self.micros() + micros, What::Do(Box::new(then)));
    }

    fn queue(&self, at: u64, what: What) {
        let order = self.inner.order.replace(self.inner.order.get() + 1);
        self.inner.queue.borrow_mut().insert((at, order), what);
    }

    /// Goes on for so long.
    pub fn run(&self, time: Duration) {
        let end = self.micros() + time.as_micros() as u64;
        loop {
            let mut queue = self.inner.queue.borrow_mut();
            let Some(next) = queue.first_entry().filter(|next| next.key().0 <= end) else { break };
            let ((at, order), what) = next.remove_entry();
            drop(queue);
            self.inner.now.set(at);
            self.note(at, order, &what);
            match what {
                What::Do(then) => then(),
                What::Wake(task) => self.poll(task),
            }
        }
        self.inner.now.set(end);
    }

    fn note(&self, at: u64, order: u64, what: &What) {
        let what = match what {
            What::Wake(TaskId(task)) => *task,
            What::Do(_) => 0,
        };
        let noted = [at, order, what].into_iter().fold(self.inner.trace.get(), |trace, number| {
            (trace.rotate_left(7) ^ number).wrapping_mul(0x2545_f491_4f6c_dd1d)
        });
        self.inner.trace.set(noted);
    }

    /// Stands for all that has happened, and in which order.
    pub fn trace(&self) -> u64 {
        self.inner.trace.get()
    }

    /// It ends, with all that its processes hold.
    pub fn end(&self) {
        let Inner { processes, tasks, queue, .. } = &*self.inner;
        let processes = std::mem::take(&mut *processes.borrow_mut());
        drop(processes);
        let tasks = std::mem::take(&mut *tasks.borrow_mut());
        drop(tasks);
        let queue = std::mem::take(&mut *queue.borrow_mut());
        drop(queue);
    }

    fn poll(&self, id: TaskId) {
        let Some(process) = self.inner.tasks.borrow().get(&id).map(|(process, _)| *process) else { return };
        let thaws = self.inner.processes.borrow().get(&process).map_or(0, |process| process.frozen_until);
        if thaws > self.micros() {
            return self.queue(thaws + self.below(THAW_MICROS), What::Wake(id));
        }
        let (percent, late) = PREEMPTED;
        if !self.inner.is_calm.get() && self.percent(percent) {
            return self.queue(self.micros() + self.below(late), What::Wake(id));
        }
        let Some(mut task) = self.inner.tasks.borrow_mut().get_mut(&id).and_then(|(_, task)| task.take()) else {
            return;
        };
        self.inner.current.set(Some(id));
        let polled = task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        self.inner.current.set(None);
        if polled.is_ready() {
            self.inner.tasks.borrow_mut().remove(&id);
            if let Some(process) = self.inner.processes.borrow_mut().get_mut(&process) {
                process.tasks.retain(|task| *task != id);
            }
            drop(task);
        } else if let Some((_, place)) = self.inner.tasks.borrow_mut().get_mut(&id) {
            *place = Some(task);
        }
        // Otherwise it has ended its own process.
    }
}

/// See [`World::sleep`].
pub struct Sleep {
    world: World,
    at: u64,
    queued: bool,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.world.micros() >= self.at {
            return Poll::Ready(());
        }
        if !self.queued {
            self.queued = true;
            self.world.queue(self.at, What::Wake(self.world.current()));
        }
        Poll::Pending
    }
}

/// A place for one value, and a task that waits for it. Clones are the same one.
pub struct Slot<T> {
    world: World,
    place: Rc<RefCell<(Option<T>, Option<TaskId>)>>,
}

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        Slot { world: self.world.clone(), place: self.place.clone() }
    }
}

impl<T> Slot<T> {
    /// An empty one.
    pub fn new(world: &World) -> Slot<T> {
        Slot { world: world.clone(), place: Rc::default() }
    }

    /// Puts a value there. The last one counts.
    pub fn set(&self, value: T) {
        let mut place = self.place.borrow_mut();
        place.0 = Some(value);
        if let Some(task) = place.1.take() {
            self.world.wake(task);
        }
    }

    /// Takes the value, if it is there.
    pub fn take(&self) -> Option<T> {
        self.place.borrow_mut().0.take()
    }

    /// Waits for it.
    pub async fn get(&self) -> T {
        std::future::poll_fn(|_| {
            let mut place = self.place.borrow_mut();
            match place.0.take() {
                Some(value) => Poll::Ready(value),
                None => {
                    place.1 = Some(self.world.current());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// What tasks did, and when.
    #[derive(Clone, Default)]
    struct Diary(Rc<RefCell<Vec<(u64, &'static str)>>>);

    impl Diary {
        fn note(&self, world: &World, what: &'static str) {
            self.0.borrow_mut().push((world.micros() / 1000 - 1000, what));
        }
    }

    fn steps(world: &World, process: ProcessId, diary: &Diary, name: &'static str) {
        let (inside, diary) = (world.clone(), diary.clone());
        world.spawn(process, async move {
            for _ in 0..3 {
                inside.sleep(ms(10)).await;
                diary.note(&inside, name);
            }
        });
    }

    #[test]
    fn a_frozen_process_does_later_what_it_would_have_done() {
        let world = World::new(1);
        world.calm();
        let (one, other, diary) = (world.start_process(HostId(1)), world.start_process(HostId(1)), Diary::default());
        steps(&world, one, &diary, "one");
        steps(&world, other, &diary, "other");
        world.run(ms(15));
        world.freeze(one, 20_000);
        world.run(ms(100));
        let expected = [(10, "one"), (10, "other"), (20, "other"), (30, "other"), (35, "one"), (45, "one")];
        let diary = diary.0.borrow();
        let early = |((at, name), (expected, who)): (&(u64, _), &(u64, _))| name != who || at.abs_diff(*expected) > 2;
        assert!(!diary.iter().zip(&expected).any(early) && diary.len() == expected.len(), "{diary:?}");
    }

    #[test]
    fn a_killed_process_does_nothing_more_and_those_who_watch_it_hear_of_its_end() {
        let world = World::new(1);
        world.calm();
        let (one, diary) = (world.start_process(HostId(1)), Diary::default());
        steps(&world, one, &diary, "one");
        let (inside, ends) = (world.clone(), diary.clone());
        world.watch(one, move || ends.note(&inside, "end"));
        world.run(ms(15));
        world.kill(one);
        world.run(ms(50));
        assert_eq!(*diary.0.borrow(), [(10, "one"), (15, "end")]);
        assert!(!world.is_alive(one));
    }

    #[test]
    fn a_value_is_waited_for_at_most_until_a_time() {
        let world = World::new(1);
        world.calm();
        let (process, diary) = (world.start_process(HostId(1)), Diary::default());
        let slot = Slot::new(&world);
        let (inside, waits, notes) = (world.clone(), slot.clone(), diary.clone());
        world.spawn(process, async move {
            let first = inside.until(inside.now() + ms(5), waits.get()).await;
            notes.note(&inside, first.map_or("none", |()| "some"));
            let second = inside.until(inside.now() + ms(50), waits.get()).await;
            notes.note(&inside, second.map_or("none", |()| "some"));
        });
        world.after(20_000, move || slot.set(()));
        world.run(ms(100));
        assert_eq!(*diary.0.borrow(), [(5, "none"), (20, "some")]);
    }
}
