//! Which rails carry a call.

/// A call of fewer bytes goes by one rail.
pub const SPREAD_BYTES_MIN: u64 = 256 << 10;

/// The least that a rail is given at a time of a call that goes by several.
const PART_BYTES_MIN: u64 = 64 << 10;

/// What is known of a rail as a call begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RailState {
    /// Its card is one of those that the call's memory prefers.
    pub is_near: bool,
    /// It is not left out, and its card is up.
    pub is_healthy: bool,
    /// Bytes of calls that are under way on it.
    pub in_flight: u64,
}

/// The rails for a call of so many bytes, by their numbers: those that are near, or the others if none of those is
/// healthy; of few bytes the one with the fewest under way. None if no rail is healthy.
pub fn choose(rails: &[RailState], bytes: u64) -> Vec<usize> {
    let healthy = || (0..rails.len()).filter(|nth| rails[*nth].is_healthy);
    let near: Vec<usize> = healthy().filter(|nth| rails[*nth].is_near).collect();
    let chosen = if near.is_empty() { healthy().collect() } else { near };
    if bytes >= SPREAD_BYTES_MIN {
        return chosen;
    }
    chosen.into_iter().min_by_key(|nth| rails[*nth].in_flight).into_iter().collect()
}

/// Bytes of the largest request of a call, so that each of its rails gets several: `most` at most.
pub fn request_bytes(bytes: u64, rails: usize, most: u64) -> u64 {
    let most = most.max(4_096);
    if rails < 2 {
        return most;
    }
    let part = (bytes / (rails as u64 * 32)).max(PART_BYTES_MIN).next_multiple_of(4_096);
    part.min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEALTHY: RailState = RailState { is_near: true, is_healthy: true, in_flight: 0 };
    const FAR: RailState = RailState { is_near: false, ..HEALTHY };
    const DOWN: RailState = RailState { is_healthy: false, ..HEALTHY };

    #[test]
    fn near_rails_come_first_and_the_others_where_none_of_them_is_healthy() {
        assert_eq!(choose(&[FAR, HEALTHY, DOWN, HEALTHY], 1 << 20), [1, 3]);
        assert_eq!(choose(&[FAR, DOWN, FAR], 1 << 20), [0, 2]);
        assert!(choose(&[DOWN, DOWN], 1 << 20).is_empty());
        assert!(choose(&[], 1).is_empty());
    }

    #[test]
    fn few_bytes_go_by_the_rail_with_the_fewest_under_way() {
        let busy = RailState { in_flight: 7, ..HEALTHY };
        assert_eq!(choose(&[busy, HEALTHY, FAR], SPREAD_BYTES_MIN - 1), [1]);
        assert_eq!(choose(&[busy, DOWN, FAR], 1), [0]);
        assert_eq!(choose(&[busy, HEALTHY], SPREAD_BYTES_MIN), [0, 1]);
    }

    /// Each rail draws the next request when it has done its last one, as lanes do.
    fn shares(speeds: &[f64], bytes: u64, lost: Option<(usize, f64)>) -> Vec<f64> {
        let request = request_bytes(bytes, speeds.len(), 1 << 20) as f64;
        let mut free_at = vec![0.0_f64; speeds.len()];
        let mut carried = vec![0.0; speeds.len()];
        let mut left = bytes as f64;
        while left > 0.0 {
            let is_lost = |nth: usize| lost.is_some_and(|(which, when)| which == nth && free_at[nth] >= when);
            let next = (0..speeds.len()).filter(|nth| !is_lost(*nth));
            let next = next.min_by(|a, b| free_at[*a].total_cmp(&free_at[*b])).expect("one is left");
            let now = request.min(left);
            carried[next] += now;
            free_at[next] += now / speeds[next];
            left -= now;
        }
        // Bytes by the speed: the time for which each was at work.
        carried.iter().zip(speeds).map(|(bytes, speed)| bytes / speed).collect()
    }

    #[test]
    fn nics_share_the_load() {
        for bytes in [8 << 20, 64 << 20, 1 << 30] {
            for speeds in [vec![1.0; 8], vec![1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0], vec![1.0, 1.0, 4.0, 1.0]] {
                let at_work = shares(&speeds, bytes, None);
                let mean = at_work.iter().sum::<f64>() / at_work.len() as f64;
                let most = at_work.iter().copied().fold(0.0, f64::max);
                assert!(most / mean <= 1.05, "{bytes} bytes over {speeds:?}: {at_work:?}");
            }
            let at_work = shares(&[1.0; 8], bytes, Some((3, 0.0)));
            assert!(at_work[3] == 0.0 && at_work.iter().sum::<f64>() > 0.0);
        }
    }
}
