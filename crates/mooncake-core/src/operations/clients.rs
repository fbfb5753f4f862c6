//! Clients with what they lend and hold, for pages.

use crate::core::Core;
use crate::ids::Time;
use mooncake_ids::SessionId;

/// A session that is not over. Figures are bytes, unless another unit is said.
#[derive(Debug, Clone)]
pub struct ClientView {
    /// Its number.
    pub session: SessionId,
    /// "host:port", as it named itself.
    pub name: String,
    /// For how long it is away, microseconds.
    pub away_us: Option<u64>,
    /// Its process has ended, and it waits for an heir.
    pub is_bereft: bool,
    /// Segments that it lends.
    pub segments: usize,
    /// What these can hold.
    pub lent: u64,
    /// In use on them, for whatever reason.
    pub used: u64,
    /// On them, under readers' views or hard pins.
    pub pinned: u64,
    /// Under its views, wherever that is.
    pub viewed: u64,
    /// In its unfinished puts.
    pub unfinished: u64,
    /// Objects that it stored and that are still there. What this master found in a snapshot of its log counts for
    /// nobody.
    pub stored_objects: u64,
    /// Of these, each once, in however many places it lies.
    pub stored: u64,
}

impl Core {
    /// Sessions from a number on, by number. Each looks at the segments that it lends.
    pub fn clients_from(&self, now: Time, first: SessionId) -> impl Iterator<Item = ClientView> {
        self.sessions.from(first).filter(|(_, entry)| !entry.ends).map(move |(session, entry)| {
            let stored = entry.writer.map(|writer| self.objects.stored_by(writer)).unwrap_or_default();
            let mut view = ClientView {
                session,
                name: entry.spec.name.clone(),
                away_us: entry.away.map(|since| now.0.saturating_sub(since.0)),
                is_bereft: entry.bereft.is_some(),
                segments: entry.segments.len(),
                lent: 0,
                used: 0,
                pinned: 0,
                viewed: self.pins.held_by(session),
                unfinished: entry.unfinished,
                stored_objects: stored.objects,
                stored: stored.bytes,
            };
            for segment in entry.segments.iter().filter_map(|number| self.segment(*number)) {
                view.lent += segment.capacity;
                view.used += segment.used;
                view.pinned += segment.pinned;
            }
            view
        })
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::config::Config;
    use crate::effect::Effects;
    use crate::ids::{Extent, Replica, SegmentNo};
    use crate::record::Record;
    use crate::request::{PinKind, SegmentSpec, SessionSpec};
    use mooncake_ids::{GRANULE, Rid, SegmentUuid};

    #[test]
    fn what_came_with_a_snapshot_counts_for_no_client() {
        let (mut core, mut fx) = (Core::new(Config::default()), Effects::default());
        core.begin(Time(1), None, &mut fx);
        let spec = |number| SessionSpec { secret: number, name: "c".into(), boot_id: vec![1; 16], process: vec![2] };
        let session = core.open_session(Time(1), spec(1), &mut fx).unwrap();
        core.open_session(Time(1), spec(2), &mut fx).unwrap();
        let bytes = 4 * GRANULE;
        let segment = SegmentSpec { uuid: SegmentUuid([1; 16]), name: "s".into(), bytes, endpoint: Vec::new() };
        core.log(Time(1), Record::SegmentMounted { number: SegmentNo(1), session, spec: segment, epoch: 1 }, &mut fx);
        core.log(Time(1), Record::SegmentPopulated { number: SegmentNo(1), bytes }, &mut fx);
        let extent = Extent { segment: SegmentNo(1), offset: 0, length: GRANULE };
        let replicas = smallvec![Replica { rid: Rid::new(1, 1), extent }];
        let key = Box::from(&b"k"[..]);
        core.log(Time(1), Record::Object { key, size: GRANULE, crc32c: 0, pin: PinKind::None, replicas }, &mut fx);
        let stored: Vec<u64> = core.clients_from(Time(2), SessionId(0)).map(|client| client.stored_objects).collect();
        assert_eq!((core.objects(), stored), (1, vec![0, 0]));
    }
}
