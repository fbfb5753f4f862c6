//! The links of one session of a store: one to a segment, made once however many want it at a time.
//!
//! A caller that wants a link looks ([`LinkBook::look`]) and does what that says. Making a link takes long, and its
//! maker does not hold the book meanwhile: it has a [`Permit`]. A permit is worth nothing any more once the segment was
//! forgotten or the session is over. So no link to a segment that has left the pool stays, wherever its making stood.

use std::collections::BTreeMap;
use std::time::Duration;

use mooncake_ids::SegmentUuid;

/// Links of a session, `L`. Clones of one are the same link.
#[derive(Debug)]
pub struct LinkBook<L> {
    session: u64,
    /// What did not work is tried again after so long.
    retry_after: Duration,
    closed: bool,
    permits: u64,
    entries: BTreeMap<SegmentUuid, Entry<L>>,
}

#[derive(Debug)]
enum Entry<L> {
    /// The holder of the permit of this number makes it.
    Making(u64),
    Made {
        link: L,
        better: Better,
        /// At the last look for those.
        was_over: bool,
    },
    Failed {
        at: Duration,
        reason: String,
        passing: bool,
    },
}

/// Whether a better link may take the place of one.
#[derive(Debug)]
enum Better {
    No,
    /// It is tried again then.
    At(Duration),
    /// The holder of the permit of this number tries it.
    Tried(u64),
}

/// Permits to make a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permit {
    uuid: SegmentUuid,
    number: u64,
}

/// What a caller that wants a link is to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Look<L> {
    /// This is the link.
    Use(L),
    /// This is the link for now. A better one may be to be had, and is to be tried beside this call:
    /// [`LinkBook::improved`] or [`LinkBook::not_improved`].
    Improve(L, Permit),
    /// Make it: [`LinkBook::made`], [`LinkBook::failed`] or [`LinkBook::given_back`]. The former one is over.
    Make(Permit, Option<L>),
    /// Another caller makes it: look again after that.
    Wait,
    /// It was tried in vain so long ago, for that reason.
    Avoid {
        /// How long.
        ago: Duration,
        /// Why it failed.
        reason: String,
        /// Whether that passes.
        passing: bool,
    },
    /// The session is over.
    Closed,
}

/// Why a link that was made is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unwanted {
    /// The segment has left the pool meanwhile.
    Forgotten,
    /// The session is over.
    Closed,
}

impl<L: Clone> LinkBook<L> {
    /// No links yet.
    pub fn new(session: u64, retry_after: Duration) -> Self {
        Self { session, retry_after, closed: false, permits: 0, entries: BTreeMap::new() }
    }

    /// The session that they belong to. A fence asks the attachments of a placement's own session only: what another
    /// one's links wrote would land behind it.
    pub fn session(&self) -> u64 {
        self.session
    }

    /// The way to a segment.
    #[inline]
    pub fn look(&mut self, uuid: SegmentUuid, now: impl Fn() -> Duration, is_over: impl Fn(&L) -> bool) -> Look<L> {
        if self.closed {
            return Look::Closed;
        }
        let former = match self.entries.get_mut(&uuid) {
            None => None,
            Some(Entry::Making(_)) => return Look::Wait,
            Some(Entry::Made { link, better, .. }) if !is_over(link) => {
                if !matches!(better, Better::At(at) if *at <= now()) {
                    return Look::Use(link.clone());
                }
                self.permits += 1;
                *better = Better::Tried(self.permits);
                return Look::Improve(link.clone(), Permit { uuid, number: self.permits });
            }
            Some(Entry::Made { link, .. }) => Some(link.clone()),
            Some(Entry::Failed { at, reason, passing }) => {
                let ago = now().saturating_sub(*at);
                if ago < self.retry_after {
                    return Look::Avoid { ago, reason: reason.clone(), passing: *passing };
                }
                None
            }
        };
        self.permits += 1;
        self.entries.insert(uuid, Entry::Making(self.permits));
        Look::Make(Permit { uuid, number: self.permits }, former)
    }

    /// A link was made, as good as can be or not. On an error the maker ends it, and no caller gets it.
    pub fn made(&mut self, permit: Permit, link: L, better_later: Option<Duration>) -> Result<(), Unwanted> {
        if self.closed {
            return Err(Unwanted::Closed);
        }
        let entry = self.entry(permit).ok_or(Unwanted::Forgotten)?;
        *entry = Entry::Made { link, better: better_later.map_or(Better::No, Better::At), was_over: false };
        Ok(())
    }

    /// There is no way, for a reason, which passes or not: it is not tried again at once.
    pub fn failed(&mut self, permit: Permit, now: Duration, reason: String, passing: bool) {
        if let Some(entry) = self.entry(permit) {
            *entry = Entry::Failed { at: now, reason, passing };
        }
    }

    /// The holder of a permit does not make the link after all: another caller may.
    pub fn given_back(&mut self, permit: Permit) {
        if self.entry(permit).is_some() {
            self.entries.remove(&permit.uuid);
        }
    }

    /// A better link was made. Gives the one to let go of: the former one, which callers that have it still use, or the
    /// better one itself (`Err`), which came too late.
    pub fn improved(&mut self, permit: Permit, link: L) -> Result<L, L> {
        match self.entry(permit) {
            Some(Entry::Made { link: current, better, was_over }) => {
                (*better, *was_over) = (Better::No, false);
                Ok(std::mem::replace(current, link))
            }
            _ => Err(link),
        }
    }

    /// No better link was made; it is to be tried again then, or never.
    pub fn not_improved(&mut self, permit: Permit, again: Option<Duration>) {
        if let Some(Entry::Made { better, .. }) = self.entry(permit) {
            *better = again.map_or(Better::No, Better::At);
        }
    }

    /// A segment has another owner: what failed, or is over, is no reason to avoid that. Gives the link that is over.
    pub fn begin_anew(&mut self, uuid: SegmentUuid, is_over: impl Fn(&L) -> bool) -> Option<L> {
        let is_done = match self.entries.get(&uuid)? {
            Entry::Failed { .. } => true,
            Entry::Made { link, .. } => is_over(link),
            Entry::Making(_) => false,
        };
        is_done.then(|| self.forget(uuid)).flatten()
    }

    /// The segment is Gone. The link is to be ended, and one that is being made will be.
    pub fn forget(&mut self, uuid: SegmentUuid) -> Option<L> {
        self.entries.remove(&uuid).and_then(Entry::into_link)
    }

    /// Parts with the links that are over and were over at the last call too, and so with memory that no caller needs.
    /// The next use of such a link would do the same, but there may be none, as of a segment that its master does not
    /// know. Between two calls an owner that hung up because it died is seen to be dead.
    pub fn part_with_over(&mut self, mut is_over: impl FnMut(&L) -> bool) -> Vec<L> {
        let is_to_go = |_: &SegmentUuid, entry: &mut Entry<L>| match entry {
            Entry::Made { link, was_over, .. } => {
                let is_over = is_over(link);
                std::mem::replace(was_over, is_over) && is_over
            }
            _ => false,
        };
        self.entries.extract_if(.., is_to_go).filter_map(|(_, entry)| entry.into_link()).collect()
    }

    /// The session is over. The caller ends all links; the maker of a link ends it when it is made.
    pub fn close(&mut self) -> Vec<L> {
        self.closed = true;
        std::mem::take(&mut self.entries).into_values().filter_map(Entry::into_link).collect()
    }

    /// Whether the session is over.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Every link that is up.
    pub fn links(&self) -> impl Iterator<Item = &L> {
        self.entries.values().filter_map(|entry| if let Entry::Made { link, .. } = entry { Some(link) } else { None })
    }

    /// What a permit is for, if it is worth anything.
    fn entry(&mut self, Permit { uuid, number }: Permit) -> Option<&mut Entry<L>> {
        let entry = self.entries.get_mut(&uuid)?;
        let current = match entry {
            Entry::Making(current) | Entry::Made { better: Better::Tried(current), .. } => *current,
            _ => return None,
        };
        (current == number).then_some(entry)
    }
}

impl<L> Entry<L> {
    fn into_link(self) -> Option<L> {
        if let Entry::Made { link, .. } = self { Some(link) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: SegmentUuid = SegmentUuid([1; 16]);
    const TWO: SegmentUuid = SegmentUuid([2; 16]);
    const RETRY: Duration = Duration::from_secs(1);

    fn book() -> LinkBook<&'static str> {
        LinkBook::new(7, RETRY)
    }

    fn look(book: &mut LinkBook<&'static str>, seconds: u64) -> Look<&'static str> {
        book.look(ONE, || Duration::from_secs(seconds), |link| link.ends_with("over"))
    }

    fn permit(book: &mut LinkBook<&'static str>) -> Permit {
        let Look::Make(permit, _) = look(book, 0) else { panic!("there is one") };
        permit
    }

    #[test]
    fn a_link_is_made_once_and_anew_when_it_is_over() {
        let mut book = book();
        let first = permit(&mut book);
        assert_eq!(look(&mut book, 0), Look::Wait, "another one makes it");
        book.given_back(first);
        assert_eq!(book.made(first, "late", None), Err(Unwanted::Forgotten));
        let second = permit(&mut book);
        assert_eq!(book.made(second, "link, over", None), Ok(()));
        assert!(matches!(look(&mut book, 0), Look::Make(permit, Some("link, over")) if permit != second));
        assert_eq!(book.made(second, "late", None), Err(Unwanted::Forgotten), "another one makes it by now");
    }

    #[test]
    fn where_another_owner_has_it_neither_a_failure_nor_a_link_that_is_over_is_in_the_way() {
        let mut book = book();
        let is_over = |link: &&str| link.ends_with("over");
        assert_eq!(book.begin_anew(ONE, is_over), None);
        let made = permit(&mut book);
        assert_eq!(book.begin_anew(ONE, is_over), None);
        book.failed(made, Duration::ZERO, "refused".into(), true);
        assert!(matches!(look(&mut book, 0), Look::Avoid { .. }));
        assert_eq!(book.begin_anew(ONE, is_over), None);
        let again = permit(&mut book);
        assert_eq!(book.made(again, "link", None), Ok(()));
        assert_eq!((book.begin_anew(ONE, is_over), look(&mut book, 0)), (None, Look::Use("link")));
        book.forget(ONE);
        let last = permit(&mut book);
        assert_eq!(book.made(last, "link, over", None), Ok(()));
        assert_eq!(book.begin_anew(ONE, is_over), Some("link, over"));
    }

    #[test]
    fn a_link_that_is_forgotten_while_it_is_made_is_nobodys() {
        let mut book = book();
        let made = permit(&mut book);
        assert_eq!(book.forget(ONE), None);
        let again = permit(&mut book);
        assert_eq!(book.made(made, "link", None), Err(Unwanted::Forgotten));
        book.given_back(made);
        book.failed(made, Duration::ZERO, "no".into(), false);
        assert_eq!(look(&mut book, 0), Look::Wait, "that is another one's now");
        assert_eq!(book.made(again, "link", None), Ok(()));
        assert_eq!((book.forget(TWO), book.forget(ONE), book.links().count()), (None, Some("link"), 0));
    }

    #[test]
    fn nothing_is_made_for_a_session_that_is_over() {
        let mut book = book();
        let made = permit(&mut book);
        assert_eq!(book.made(made, "link", None), Ok(()));
        let Look::Make(other, _) = book.look(TWO, || Duration::ZERO, |_| false) else { panic!("there is one") };
        assert_eq!((book.close(), book.is_closed()), (vec!["link"], true));
        assert_eq!(book.made(other, "other", None), Err(Unwanted::Closed));
        assert_eq!((look(&mut book, 0), book.links().count()), (Look::Closed, 0));
    }

    #[test]
    fn a_link_that_nobody_uses_is_parted_with_when_it_is_over_at_two_looks() {
        let mut book = book();
        let made = permit(&mut book);
        assert_eq!(book.made(made, "link", None), Ok(()));
        let mut ends = [false, true, false, true, true, true].into_iter();
        let mut look = || book.part_with_over(|_| ends.next().expect("one is there"));
        assert!((0..4).all(|_| look().is_empty()), "it was not over at the look before, or is not any more");
        assert_eq!(look(), ["link"]);
        assert!(look().is_empty());
    }

    #[test]
    fn what_has_failed_is_left_alone_for_a_while() {
        let mut book = book();
        let made = permit(&mut book);
        book.failed(made, Duration::from_secs(5), "no way".into(), true);
        let avoided = Look::Avoid { ago: Duration::ZERO, reason: "no way".into(), passing: true };
        assert_eq!(look(&mut book, 5), avoided);
        assert!(matches!(look(&mut book, 6), Look::Make(_, None)));
    }

    #[test]
    fn a_better_link_is_tried_by_one_at_a_time_and_takes_the_place_of_the_one_that_it_was_tried_for() {
        let mut book = book();
        let made = permit(&mut book);
        assert_eq!(book.made(made, "slow", Some(Duration::from_secs(3))), Ok(()));
        assert_eq!(look(&mut book, 2), Look::Use("slow"));
        let Look::Improve("slow", tried) = look(&mut book, 3) else { panic!("it is time") };
        assert_eq!(look(&mut book, 9), Look::Use("slow"), "somebody is at it");
        book.not_improved(tried, Some(Duration::from_secs(9)));
        assert_eq!(book.improved(tried, "late"), Err("late"));
        let Look::Improve("slow", tried) = look(&mut book, 9) else { panic!("it is time") };
        assert_eq!(book.improved(tried, "quick"), Ok("slow"));
        assert_eq!(look(&mut book, 99), Look::Use("quick"));
    }

    #[test]
    fn a_better_link_to_what_was_forgotten_comes_too_late() {
        let mut book = book();
        let made = permit(&mut book);
        assert_eq!(book.made(made, "slow", Some(Duration::ZERO)), Ok(()));
        let Look::Improve("slow", tried) = look(&mut book, 0) else { panic!("it is time") };
        assert_eq!(book.forget(ONE), Some("slow"));
        assert_eq!(book.improved(tried, "quick"), Err("quick"));
        book.not_improved(tried, None);
        assert!(matches!(look(&mut book, 0), Look::Make(_, None)));
    }
}
