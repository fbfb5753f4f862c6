//! The clock of a master: deadlines pass with its ticks, ends of processes count between them, and a gap between two
//! ticks means that this process itself stood still, in which no client was silent. Nor was one while the master was
//! deaf: while it read nothing that came over anchors.

use std::time::Duration;

use mooncake_core::{Departure, STEP_OBJECTS};
use mooncake_ids::SessionId;
use mooncake_mutant::mutant;

use super::core_driver::CoreDriver;

/// Between two ticks.
const TICK: Duration = Duration::from_millis(20);

/// A gap this long between two ticks: this process itself was stopped. A master that has not read anchors for so long
/// is deaf.
const STALL: Duration = Duration::from_millis(500);

/// Background slices between two ticks; the core is free between any two of them.
const SLICES: usize = 32;

/// How often what sessions that are over have left behind is cleared.
const SWEEP: Duration = Duration::from_secs(5);

/// How often it is looked at how much is written to tiers.
const WEAR: Duration = Duration::from_secs(3_600);

/// A drive that is filled more often than so a day may not last.
const FILLS_PER_DAY_MAX: f64 = 5.0;

/// How often at most people are told that memory had no time to wait for a disk.
const UNWRITTEN: Duration = Duration::from_secs(60);

/// What the clock needs of its master.
pub trait TickDriver: CoreDriver {
    /// Since a time origin that the driver chooses.
    fn now(&self) -> Duration;

    /// For how long nothing that comes over anchors has been read.
    fn deaf(&self) -> Duration;

    /// Tells people.
    fn tell(&self, news: News);

    /// Behind segments that are gone everything is cleared up: many objects were freed.
    fn purged(&self);

    /// Clears connections and watches of sessions that are over, and what is known of their clients.
    fn sweep(&self);
}

/// What people are told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// This process did nothing for so long.
    StoodStill(Duration),
    /// The master has read no anchor for so long, and reads none.
    IsDeaf(Duration),
    /// A client has left.
    Left(Departure),
    /// What was written to a tier within an hour fills it more often a day than drives are made for.
    WearsOut {
        /// Name of its owner.
        owner: String,
        /// How often, rounded.
        fills_per_day: u64,
    },
    /// Since it was told of last, so much has left memory that no tier has, though there is one.
    LeftUnwritten {
        /// How many.
        objects: u64,
        /// All of them.
        bytes: u64,
    },
}

/// When what was done last.
#[derive(Debug)]
pub struct Ticker {
    last: Duration,
    swept: Duration,
    looked_at_wear: Duration,
    unwritten: Unwritten,
    purging: bool,
    deaf: bool,
}

/// What had left memory unwritten when people were told of it last.
#[derive(Debug, Default)]
struct Unwritten {
    told_at: Option<Duration>,
    objects: u64,
    bytes: u64,
}

impl Ticker {
    /// Begins to tick.
    pub fn new(now: Duration) -> Ticker {
        let unwritten = Unwritten::default();
        Ticker { last: now, swept: now, looked_at_wear: now, unwritten, purging: false, deaf: false }
    }

    /// How long to wait for processes to end, or for work that requests wait for, before the next [`Ticker::step`].
    pub fn pause(&self, now: Duration) -> Duration {
        TICK.saturating_sub(now.saturating_sub(self.last))
    }

    /// Takes note of processes that have ended, by their sessions, and ticks if it is time to. Between two ticks it
    /// does what requests wait for: a driver makes a step too when the core [says](mooncake_core::Core::keeps_waiting)
    /// that they do.
    pub fn step<D: TickDriver>(&mut self, driver: &D, ended: &[SessionId]) -> Result<(), D::Closed> {
        let gap = driver.now().saturating_sub(self.last);
        if gap > STALL {
            driver.tell(News::StoodStill(gap));
            if !mutant!(StalledMastersCountSilence) {
                driver.apply(|core, now, _| core.stalled(now))?;
            }
        }
        for &session in ended {
            let left = driver.apply(|core, now, effects| {
                core.process_gone(now, session, effects);
                core.take_departures()
            })?;
            left.into_iter().for_each(|left| driver.tell(News::Left(left)));
        }
        if gap < TICK {
            return match driver.read(|core, _| core.keeps_waiting()) {
                true => work_in_background(driver),
                false => Ok(()),
            };
        }
        self.listen(driver, gap > STALL)?;
        self.last = driver.now();
        let left = driver.apply(|core, now, effects| {
            core.tick(now, effects);
            core.take_departures()
        })?;
        left.into_iter().for_each(|left| driver.tell(News::Left(left)));
        work_in_background(driver)?;
        let purging = driver.read(|core, _| core.is_purging());
        if self.purging && !purging {
            driver.purged();
        }
        self.purging = purging;
        let now = driver.now();
        if now.saturating_sub(self.swept) > SWEEP {
            self.swept = now;
            driver.sweep();
            self.unwritten.tell(driver, now);
        }
        if now.saturating_sub(self.looked_at_wear) >= WEAR {
            self.looked_at_wear = now;
            tell_wear(driver);
        }
        Ok(())
    }
}

impl Unwritten {
    fn tell<D: TickDriver>(&mut self, driver: &D, now: Duration) {
        if self.told_at.is_some_and(|at| now.saturating_sub(at) < UNWRITTEN) {
            return;
        }
        let (objects, bytes) = driver.read(|core, _| {
            let counters = core.counters();
            (counters.evicted_unwritten_objects, counters.evicted_unwritten_bytes)
        });
        if objects > self.objects {
            driver.tell(News::LeftUnwritten { objects: objects - self.objects, bytes: bytes - self.bytes });
            *self = Unwritten { told_at: Some(now), objects, bytes };
        }
    }
}

fn tell_wear<D: TickDriver>(driver: &D) {
    let worn: Vec<News> = driver.read(|core, now| {
        let tiers = core.tiers().map(|tier| (tier.spec.name.clone(), tier.fills_per_day(now)));
        let worn = tiers.filter(|(_, fills)| *fills > FILLS_PER_DAY_MAX);
        worn.map(|(owner, fills)| News::WearsOut { owner, fills_per_day: fills.round() as u64 }).collect()
    });
    worn.into_iter().for_each(|news| driver.tell(news));
}

impl Ticker {
    /// While the master is deaf no client is silent. `stood_still`: this process did nothing else either, which the
    /// driver was told.
    fn listen<D: TickDriver>(&mut self, driver: &D, stood_still: bool) -> Result<(), D::Closed> {
        let silence = driver.deaf();
        let was_deaf = std::mem::replace(&mut self.deaf, silence > STALL);
        if !self.deaf {
            return Ok(());
        }
        if !was_deaf && !stood_still {
            driver.tell(News::IsDeaf(silence));
        }
        if !mutant!(DeafMastersCountSilence) {
            driver.apply(|core, now, _| core.stalled(now))?;
        }
        Ok(())
    }
}

/// Lets the core do what it need not do at once: all of it, or as much as one tick has time for.
fn work_in_background<D: TickDriver>(driver: &D) -> Result<(), D::Closed> {
    let began = driver.now();
    for _ in 0..SLICES {
        // Where each step waits for a disk there are fewer.
        let late = driver.now().saturating_sub(began) > TICK;
        if late || !driver.apply(|core, now, effects| core.background(now, STEP_OBJECTS, effects))? {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::convert::Infallible;

    use mooncake_core::{Core, Effects, Ended, Origin, Push, PutConfig, PutStarted, StartOutcome, Time};
    use mooncake_mutant::{Mutant, is_noticed_by};
    use mooncake_wire::message::{TierWritten, anchor_up};

    use super::super::testbed::{Client, Testbed};
    use super::*;

    const KEYS: u64 = 9_500;

    struct Script {
        testbed: RefCell<Testbed>,
        news: RefCell<Vec<News>>,
        operations: Cell<usize>,
        purged: Cell<u32>,
        sweeps: Cell<u32>,
        deaf: Cell<Duration>,
    }

    impl CoreDriver for Script {
        type Closed = Infallible;

        fn read<R>(&self, ask: impl FnOnce(&mut Core, Time) -> R) -> R {
            self.testbed.read(ask)
        }

        fn apply<R>(&self, operation: impl FnOnce(&mut Core, Time, &mut Effects) -> R) -> Result<R, Infallible> {
            self.operations.set(self.operations.get() + 1);
            self.testbed.apply(operation)
        }
    }

    impl TickDriver for Script {
        fn now(&self) -> Duration {
            Duration::from_micros(self.testbed.borrow().now.0)
        }

        fn deaf(&self) -> Duration {
            self.deaf.get()
        }

        fn tell(&self, news: News) {
            self.news.borrow_mut().push(news);
        }

        fn purged(&self) {
            self.purged.set(self.purged.get() + 1);
        }

        fn sweep(&self) {
            self.sweeps.set(self.sweeps.get() + 1);
        }
    }

    impl Script {
        fn new() -> (Script, Ticker) {
            let script = Script {
                testbed: RefCell::new(Testbed::new()),
                news: RefCell::default(),
                operations: Cell::default(),
                purged: Cell::default(),
                sweeps: Cell::default(),
                deaf: Cell::default(),
            };
            let ticker = Ticker::new(script.now());
            (script, ticker)
        }

        /// Time passes, and a step is made.
        fn step_after(&self, ticker: &mut Ticker, ms: u64, ended: &[SessionId]) {
            self.testbed.borrow_mut().now.0 += 1_000 * ms;
            let Ok(()) = ticker.step(self, ended);
        }

        /// Ticks for so long, as a driver does.
        fn run(&self, ticker: &mut Ticker, ms: u64) {
            let until = self.now() + Duration::from_millis(ms);
            while self.now() < until {
                self.step_after(ticker, ticker.pause(self.now()).as_millis() as u64, &[]);
            }
        }

        fn away(&self) -> usize {
            self.testbed.borrow().stats().sessions_away as usize
        }

        /// An object for each of very many keys.
        fn fill(&self, client: Client) {
            (1..=KEYS).for_each(|number| self.put(client, number, 1));
        }

        /// An object of that size. Its number is larger than that of any before.
        fn put(&self, client: Client, number: u64, bytes: u64) {
            let origin = Origin { session: client.session, sequence: 2 * number, answered_below: 2 * number };
            let key = number.to_le_bytes();
            let Ok(()) = self.apply(|core, now, effects| {
                let puts = [(&key[..], bytes)];
                let started = core.put_start(now, origin, &puts, &PutConfig::default(), false, effects).unwrap();
                let PutStarted::Now(outcomes) = started else { panic!("{started:?}") };
                let [StartOutcome::Placed(replicas)] = &outcomes[..] else { panic!("{outcomes:?}") };
                let ended =
                    Ended { replicas: [(replicas[0].rid, true)].into_iter().collect(), crc32c: 0, stays: false };
                let origin = Origin { sequence: 2 * number + 1, ..origin };
                core.put_end(now, origin, &[ended], effects).unwrap();
            });
        }
    }

    #[test]
    fn while_the_master_itself_stood_still_no_client_was_silent() {
        let (script, mut ticker) = Script::new();
        script.testbed.borrow_mut().owner();
        script.run(&mut ticker, 1_500);
        script.step_after(&mut ticker, 3_000, &[]);
        assert_eq!(*script.news.borrow(), [News::StoodStill(Duration::from_secs(3))]);
        script.run(&mut ticker, 1_900);
        assert_eq!(script.away(), 0);
        script.run(&mut ticker, 200);
        assert_eq!(script.away(), 1, "its silence counts from then on");
    }

    #[test]
    fn while_nobody_listened_to_clients_none_was_silent() {
        let (script, mut ticker) = Script::new();
        script.testbed.borrow_mut().owner();
        script.run(&mut ticker, 1_500);
        for deaf in 501..5_000 {
            script.deaf.set(Duration::from_millis(deaf));
            script.step_after(&mut ticker, 1, &[]);
        }
        assert_eq!(*script.news.borrow(), [News::IsDeaf(Duration::from_millis(520))], "said once");
        script.deaf.set(Duration::ZERO);
        script.run(&mut ticker, 1_900);
        assert_eq!(script.away(), 0);
        script.run(&mut ticker, 200);
        assert_eq!(script.away(), 1, "its silence counts from then on");
    }

    #[test]
    fn a_process_that_was_stopped_says_so_once_whatever_it_did_not_hear_meanwhile() {
        let (script, mut ticker) = Script::new();
        script.run(&mut ticker, 100);
        script.deaf.set(Duration::from_secs(3));
        script.step_after(&mut ticker, 3_000, &[]);
        script.step_after(&mut ticker, 20, &[]);
        assert_eq!(*script.news.borrow(), [News::StoodStill(Duration::from_secs(3))]);
    }

    #[test]
    fn who_listens_late_excuses_nobody() {
        let (script, mut ticker) = Script::new();
        script.testbed.borrow_mut().owner();
        script.deaf.set(STALL);
        script.run(&mut ticker, 2_100);
        assert_eq!((script.away(), &script.news.borrow()[..]), (1, &[][..]));
    }

    #[test]
    fn a_tick_that_comes_a_little_late_excuses_nobody() {
        let (script, mut ticker) = Script::new();
        script.testbed.borrow_mut().owner();
        for _ in 0..5 {
            script.step_after(&mut ticker, 500, &[]);
        }
        assert_eq!((script.away(), &script.news.borrow()[..]), (1, &[][..]));
    }

    #[test]
    fn a_process_that_ends_is_over_between_two_ticks_which_come_when_they_would_have() {
        let (script, mut ticker) = Script::new();
        let client = script.testbed.borrow_mut().owner();
        script.step_after(&mut ticker, 5, &[client.session]);
        assert!(!script.testbed.borrow().knows(client));
        let news = script.news.borrow().clone();
        let [News::Left(left)] = &news[..] else { panic!("{news:?}") };
        assert_eq!((left.session, left.in_order, left.segments), (client.session, false, 1));
        assert!(left.lent > 0 && left.reason.contains("process is gone"), "{left:?}");
        assert_eq!(ticker.pause(script.now()), Duration::from_millis(15));
        assert_eq!(ticker.pause(script.now() + TICK), Duration::ZERO, "it is late");
    }

    #[test]
    fn what_lay_on_a_segment_that_is_gone_is_cleared_up_some_at_a_tick_and_then_that_is_said_once() {
        let (script, mut ticker) = Script::new();
        let client = script.testbed.borrow_mut().owner();
        script.fill(client);
        script.run(&mut ticker, 100);
        script.step_after(&mut ticker, 5, &[client.session]);
        script.operations.set(0);
        script.step_after(&mut ticker, 15, &[]);
        assert_eq!((script.operations.take(), script.purged.get()), (1 + SLICES, 0), "one tick, and so many slices");
        script.step_after(&mut ticker, 20, &[]);
        assert!(script.operations.take() < 1 + SLICES, "it ends where nothing is left");
        assert_eq!(script.purged.get(), 1);
        script.run(&mut ticker, 100);
        assert_eq!(script.purged.get(), 1);
    }

    #[test]
    fn what_requests_wait_for_goes_on_between_two_ticks() {
        let (script, mut ticker) = Script::new();
        let client = script.testbed.borrow_mut().owner();
        script.fill(client);
        script.run(&mut ticker, 100);
        script.operations.set(0);
        script.step_after(&mut ticker, 5, &[]);
        assert_eq!(script.operations.take(), 0, "nobody waits");
        let large = Origin { session: client.session, sequence: 3 * KEYS, answered_below: 3 * KEYS };
        let Ok(started) = script.apply(|core, now, effects| {
            let puts = [(&b"large"[..], 60 << 20)];
            core.put_start(now, large, &puts, &PutConfig::default(), true, effects).unwrap()
        });
        assert!(matches!(started, PutStarted::Parked(_)), "{started:?}");
        assert!(script.read(|core, _| core.keeps_waiting()));
        for _ in 0..4 {
            script.step_after(&mut ticker, 3, &[]);
        }
        assert!(script.read(|core, _| !core.keeps_waiting() && core.stats().tickets == 0));
        assert!(script.operations.take() > SLICES, "all in a few holds of the lock");
    }

    #[test]
    fn what_is_over_is_swept_away_every_few_seconds() {
        let (script, mut ticker) = Script::new();
        script.run(&mut ticker, 5_000);
        assert_eq!(script.sweeps.get(), 0);
        script.run(&mut ticker, 20);
        assert_eq!(script.sweeps.get(), 1);
        script.run(&mut ticker, 5_000);
        assert_eq!(script.sweeps.get(), 1);
        script.run(&mut ticker, 20);
        assert_eq!(script.sweeps.get(), 2);
    }

    #[test]
    fn a_tier_that_an_hour_has_filled_too_much_of_for_its_disk_is_told_of_and_another_is_not() {
        for (objects, told) in [(8, None), (16, Some(6))] {
            let (script, mut ticker) = Script::new();
            script.step_after(&mut ticker, 60_000, &[]);
            let client = script.testbed.borrow_mut().owner();
            // 64 MiB: five fills a day are 13 MiB an hour.
            let tier = script.testbed.borrow_mut().tier(client, 64 << 20);
            for number in 1..=objects {
                script.put(client, number, 1 << 20);
                script.run(&mut ticker, 20);
                let pushes = std::mem::take(&mut script.testbed.borrow_mut().effects.pushes);
                let order = |(_, push)| if let Push::TierOrder { rid, .. } = push { Some(rid.0) } else { None };
                let rids: Vec<u64> = pushes.into_iter().filter_map(order).collect();
                assert_eq!(rids.len(), 1);
                let (tier, window) = (tier.clone(), 64 << 20);
                let written = TierWritten { tier, rids, addresses: vec![number], window, ..TierWritten::default() };
                script.testbed.borrow_mut().says(client, anchor_up::Body::TierWritten(written)).unwrap();
            }
            script.step_after(&mut ticker, WEAR.as_millis() as u64 - 60_000, &[]);
            let worn = script.news.borrow().iter().find_map(|news| match news {
                News::WearsOut { owner, fills_per_day } => Some((owner.clone(), *fills_per_day)),
                _ => None,
            });
            assert_eq!(worn, told.map(|fills| ("h:1".to_owned(), fills)));
        }
    }

    #[test]
    fn what_left_memory_before_a_tier_had_it_is_told_of_once_a_minute() {
        let (script, mut ticker) = Script::new();
        let client = script.testbed.borrow_mut().owner();
        let tier = script.testbed.borrow_mut().tier(client, 64 << 20);
        let is_not_written = TierWritten { tier, window: 0, ..TierWritten::default() };
        script.testbed.borrow_mut().says(client, anchor_up::Body::TierWritten(is_not_written)).unwrap();
        let told = |ticker: &mut Ticker, ms| {
            script.step_after(ticker, ms, &[]);
            let news = std::mem::take(&mut *script.news.borrow_mut());
            news.into_iter().filter(|news| matches!(news, News::LeftUnwritten { .. })).collect::<Vec<_>>()
        };
        (1..=60).for_each(|number| script.put(client, number, 1 << 20));
        assert_eq!(told(&mut ticker, 6_000), [], "all of it is there");
        (61..=80).for_each(|number| script.put(client, number, 1 << 20));
        let objects = script.read(|core, _| core.counters().evicted_unwritten_objects);
        assert!(objects >= 16, "{objects}");
        assert_eq!(told(&mut ticker, 6_000), [News::LeftUnwritten { objects, bytes: objects << 20 }]);
        (81..=83).for_each(|number| script.put(client, number, 1 << 20));
        assert_eq!(told(&mut ticker, 6_000), [], "it was just said");
        let since = [News::LeftUnwritten { objects: 3, bytes: 3 << 20 }];
        assert_eq!(told(&mut ticker, 60_000), since);
        assert_eq!(told(&mut ticker, 60_000), []);
    }

    #[test]
    fn its_mutants_are_noticed() {
        assert!(is_noticed_by(
            Mutant::StalledMastersCountSilence,
            while_the_master_itself_stood_still_no_client_was_silent
        ));
        assert!(is_noticed_by(Mutant::DeafMastersCountSilence, while_nobody_listened_to_clients_none_was_silent));
    }
}
