//! The objects of one call, shared among a few threads.
//!
//! A device's link carries more than one processor copies and checksums, and a thread that waits for the link copies
//! nothing meanwhile. For memory of the host one thread is enough: there a call stays with its caller's, but for what
//! lies on several disks.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use mooncake_os::thread::start_scoped;
use parking_lot::Mutex;

/// Most threads of one call, its caller's among them.
const THREADS_MAX: usize = 4;

/// Bytes that are worth a thread: to start one takes as long as to copy some hundred KiB.
const WORTH_A_THREAD: u64 = 4 << 20;

/// How often the caller's thread asks its interrupt hook while it waits for the others.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(50);

/// How many threads a call gets for so many objects and bytes.
pub(crate) fn threads_for(objects: usize, bytes: u64) -> usize {
    static PROCESSORS: LazyLock<usize> = LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from));
    if objects < 2 || bytes < 2 * WORTH_A_THREAD {
        return 1;
    }
    THREADS_MAX.min(*PROCESSORS).min(objects).min(usize::try_from(bytes / WORTH_A_THREAD).unwrap_or(THREADS_MAX))
}

/// Does `work` for each item, on so many threads, and gives what became of each, in order, and whether the caller's
/// `interrupted` has said yes: it may say so only once.
///
/// The caller's thread is one of them. It alone can ask `interrupted`; the function that `work` is given tells
/// its answer to all. A thread whose outcome is `starved` takes no further item, and that one is worked on again
/// once no other thread of the call is at work.
pub(crate) fn fan_out<T: Send, R: Send>(
    items: Vec<T>,
    threads: usize,
    interrupted: &(dyn Fn() -> bool + Sync),
    starved: impl Fn(&R) -> bool + Sync,
    work: impl Fn(&mut T, &(dyn Fn() -> bool + Sync)) -> R + Sync,
) -> (Vec<R>, bool) {
    let over = AtomicBool::new(false);
    let told = || over.load(Ordering::Relaxed);
    let ask = || {
        if !told() && interrupted() {
            over.store(true, Ordering::Relaxed);
        }
        told()
    };
    if threads < 2 {
        let outcomes = items.into_iter().map(|mut item| work(&mut item, &ask)).collect();
        return (outcomes, told());
    }
    let mut outcomes: Vec<Option<R>> = items.iter().map(|_| None).collect();
    let queue = Mutex::new(items.into_iter().enumerate());
    let (done, late) = (Mutex::new(Vec::with_capacity(outcomes.len())), Mutex::new(Vec::new()));
    let take = |interrupted: &(dyn Fn() -> bool + Sync)| {
        loop {
            let next = queue.lock().next();
            let Some((nth, mut item)) = next else { break };
            let outcome = work(&mut item, interrupted);
            if starved(&outcome) {
                late.lock().push((nth, item));
                break;
            }
            done.lock().push((nth, outcome));
        }
    };

    let at_work = AtomicUsize::new(threads - 1);
    let caller = thread::current();
    thread::scope(|scope| {
        for nth in 1..threads {
            let at_work = AtWork { at_work: &at_work, caller: &caller };
            let (take, told) = (&take, &told);
            let member = move || {
                let _at_work = at_work;
                take(told);
            };
            let builder = thread::Builder::new().name(format!("mooncake-copy-{nth}"));
            // One that cannot be started is done without; its mark of being at work has gone with it.
            let _ = start_scoped(scope, builder, member);
        }
        take(&ask);
        while at_work.load(Ordering::Acquire) > 0 {
            ask();
            thread::park_timeout(INTERRUPT_INTERVAL);
        }
    });

    let rest = late.into_inner().into_iter().chain(queue.into_inner());
    let rest = rest.map(|(nth, mut item)| (nth, work(&mut item, &ask)));
    for (nth, outcome) in done.into_inner().into_iter().chain(rest) {
        outcomes[nth] = Some(outcome);
    }
    let outcomes = outcomes.into_iter().map(|outcome| outcome.expect("each item was worked on")).collect();
    (outcomes, told())
}

/// Tells the caller's thread when another is done, also by a panic.
struct AtWork<'a> {
    at_work: &'a AtomicUsize,
    caller: &'a Thread,
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.at_work.fetch_sub(1, Ordering::Release);
        self.caller.unpark();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::time::Instant;

    use super::*;

    const NEVER: &(dyn Fn() -> bool + Sync) = &|| false;

    #[test]
    fn outcomes_are_those_of_their_items_whichever_thread_had_them() {
        for threads in [1, 2, 4] {
            let meeting = Barrier::new(threads);
            let (outcomes, told) = fan_out(
                (0..100).collect(),
                threads,
                NEVER,
                |_| false,
                |item: &mut u64, _: &(dyn Fn() -> bool + Sync)| {
                    if *item < threads as u64 {
                        // Nobody has two of the first.
                        meeting.wait();
                    }
                    *item * 2
                },
            );
            assert_eq!(outcomes, (0..100).map(|item| item * 2).collect::<Vec<_>>());
            assert!(!told);
        }
    }

    #[test]
    fn an_item_for_which_there_was_nothing_left_is_worked_on_when_the_others_are_done() {
        // One place for two threads: whoever comes second goes without, until the first is done with everything.
        let (place, meeting) = (AtomicUsize::new(1), Barrier::new(2));
        let begun = AtomicUsize::new(0);
        let (outcomes, _) =
            fan_out((0..50).collect(), 2, NEVER, Option::is_none, |item: &mut u64, _: &(dyn Fn() -> bool + Sync)| {
                let mine = place.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1)).is_ok();
                if begun.fetch_add(1, Ordering::AcqRel) < 2 {
                    meeting.wait();
                }
                mine.then(|| {
                    place.store(1, Ordering::Release);
                    *item
                })
            });
        assert_eq!(outcomes, (0..50).map(Some).collect::<Vec<_>>());
        let (outcomes, _) = fan_out(
            (0..50).collect(),
            3,
            NEVER,
            Option::is_none,
            |_: &mut u64, _: &(dyn Fn() -> bool + Sync)| None::<()>,
        );
        assert_eq!(outcomes, vec![None; 50], "what stays without it has that as its outcome");
    }

    #[test]
    fn what_interrupts_the_caller_ends_the_work_of_all() {
        let (caller, asked) = (thread::current().id(), AtomicUsize::new(0));
        let interrupted = || {
            assert_eq!(thread::current().id(), caller, "a hook is the calling thread's");
            // Says it once, as a signal does.
            asked.fetch_add(1, Ordering::Relaxed) == 3
        };
        let meeting = Barrier::new(4);
        let until = Instant::now() + Duration::from_secs(20);
        let (outcomes, told) = fan_out(
            (0..8).collect(),
            4,
            &interrupted,
            |_| false,
            |item: &mut u64, over: &(dyn Fn() -> bool + Sync)| {
                if *item < 4 {
                    // Nobody has two of the first: some are not the caller's.
                    meeting.wait();
                }
                // The caller's own are done at once: it hears of it while it waits.
                while thread::current().id() != caller && !over() {
                    assert!(Instant::now() < until);
                    thread::yield_now();
                }
                *item
            },
        );
        assert!(told && outcomes.len() == 8);
    }

    #[test]
    fn threads_are_for_large_calls_of_several_objects() {
        assert_eq!(threads_for(1, 1 << 40), 1);
        assert_eq!(threads_for(1000, 2 * WORTH_A_THREAD - 1), 1);
        let most = THREADS_MAX.min(thread::available_parallelism().unwrap().get());
        assert_eq!(threads_for(1000, u64::MAX), most);
        assert_eq!(threads_for(2, u64::MAX), most.min(2));
    }
}
