//! What version 1 of the protocol gained after its first form. Both sides say in their hellos which of these they know.
//! A field that a master does not know it ignores, and answers as if it had done it; a request that it does not know it
//! refuses without saying which.

use crate::message::request::Body;

/// One addition; its number is its bit in `features`, and is never given to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Feature {
    /// Puts that replace what is there, and clear its soft pin.
    Replace = 0,
    /// Groups of objects.
    Groups = 1,
    /// Replicas of objects, listed.
    Describe = 2,
    /// Removal by pattern.
    RemoveByRegex = 3,
    /// Unmounting with a grace.
    UnmountGrace = 4,
    /// Epochs of segments in a resume, each for itself, that say what is taken and not what was asked.
    SegmentEpochs = 5,
    /// Pins that a master does not know, named in its answer to a resume.
    UnknownPins = 6,
    /// Owners that say which readers of theirs have ended.
    ReaderGone = 7,
    /// Ids of epochs, in positions of the log.
    EpochIds = 8,
    /// Replicas dropped by request.
    ClearReplicas = 9,
    /// Tiers behind the memory.
    Tiers = 10,
    /// Memory that outlives its process.
    Kept = 11,
    /// Tiers that earlier processes have left, beside a store's own.
    Adoption = 12,
    /// Tiers on file systems that sessions share.
    SharedTiers = 13,
}

impl Feature {
    /// All of them.
    pub const ALL: [Feature; 14] = [
        Feature::Replace,
        Feature::Groups,
        Feature::Describe,
        Feature::RemoveByRegex,
        Feature::UnmountGrace,
        Feature::SegmentEpochs,
        Feature::UnknownPins,
        Feature::ReaderGone,
        Feature::EpochIds,
        Feature::ClearReplicas,
        Feature::Tiers,
        Feature::Kept,
        Feature::Adoption,
        Feature::SharedTiers,
    ];

    /// Its bit.
    pub const fn bit(self) -> u64 {
        1 << self as u8
    }

    /// In messages for people.
    pub fn name(self) -> &'static str {
        match self {
            Feature::Replace => "puts that replace (upsert)",
            Feature::Groups => "groups of objects",
            Feature::Describe => "lists of an object's replicas",
            Feature::RemoveByRegex => "removal by pattern",
            Feature::UnmountGrace => "unmounting with a grace",
            Feature::SegmentEpochs => "epochs of single segments",
            Feature::UnknownPins => "pins that a log has lost",
            Feature::ReaderGone => "the ends of readers, told by owners",
            Feature::EpochIds => "ids of epochs",
            Feature::ClearReplicas => "replicas that are dropped by request (batch_replica_clear)",
            Feature::Tiers => "tiers of storage behind the memory",
            Feature::Kept => "memory that outlives its process",
            Feature::Adoption => "tiers of earlier processes beside a store's own",
            Feature::SharedTiers => "tiers on a file system that clients share",
        }
    }

    /// Whether `features` have it.
    pub const fn is_in(self, features: u64) -> bool {
        features & self.bit() != 0
    }

    /// What a request asks for that `features` do not have.
    pub fn missing(features: u64, body: &Body) -> Option<Feature> {
        let needed = match body {
            Body::PutStart(ask) => {
                let replaces = ask.config.as_ref().is_some_and(|config| config.replace);
                let grouped = ask.groups.as_ref().is_some_and(|groups| !groups.blob.is_empty());
                let needed = [(replaces, Feature::Replace), (grouped, Feature::Groups)];
                return needed.into_iter().find(|(asked, it)| *asked && features & it.bit() == 0).map(|(_, it)| it);
            }
            Body::Unmount(ask) if ask.grace_ms > 0 => Feature::UnmountGrace,
            Body::Describe(_) => Feature::Describe,
            Body::RemoveByRegex(_) => Feature::RemoveByRegex,
            Body::ClearReplicas(_) => Feature::ClearReplicas,
            Body::Keep(_) => Feature::Kept,
            Body::TierMount(ask) if !ask.file_system.is_empty() => Feature::SharedTiers,
            Body::TierMount(ask) if ask.adopted => Feature::Adoption,
            Body::TierMount(_) | Body::TierLeave(_) | Body::TierReclaim(_) => Feature::Tiers,
            _ => return None,
        };
        (features & needed.bit() == 0).then_some(needed)
    }
}

/// The bits of everything that this build knows.
pub const FEATURES: u64 = {
    let (mut bits, mut at) = (0, 0);
    while at < Feature::ALL.len() {
        bits |= Feature::ALL[at].bit();
        at += 1;
    }
    bits
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Describe, Exists, PutConfig, PutStart, Unmount};
    use crate::pack_keys;

    #[test]
    fn bits_are_what_they_were_when_they_were_first_sent() {
        assert_eq!(Feature::ALL.map(Feature::bit), std::array::from_fn(|bit| 1 << bit));
        assert_eq!(FEATURES, (1 << 14) - 1);
    }

    #[test]
    fn only_what_asks_for_an_addition_needs_it() {
        let put = |replace, groups: Option<&[&str]>| {
            let config = Some(PutConfig { replace, ..PutConfig::default() });
            Body::PutStart(PutStart { config, groups: groups.map(pack_keys), ..PutStart::default() })
        };
        assert_eq!(Feature::missing(0, &put(false, None)), None);
        assert_eq!(Feature::missing(0, &put(false, Some(&["", ""]))), None);
        assert_eq!(Feature::missing(0, &put(false, Some(&["", "g"]))), Some(Feature::Groups));
        assert_eq!(Feature::missing(2, &put(true, Some(&["g"]))), Some(Feature::Replace));
        assert_eq!(Feature::missing(3, &put(true, Some(&["g"]))), None);
        assert_eq!(Feature::missing(0, &Body::Exists(Exists::default())), None);
        assert_eq!(Feature::missing(!4, &Body::Describe(Describe::default())), Some(Feature::Describe));
        let unmount = |grace_ms| Body::Unmount(Unmount { grace_ms, ..Unmount::default() });
        assert_eq!((Feature::missing(0, &unmount(0)), Feature::missing(31, &unmount(1))), (None, None));
        assert_eq!(Feature::missing(0, &unmount(1)), Some(Feature::UnmountGrace));
    }
}
