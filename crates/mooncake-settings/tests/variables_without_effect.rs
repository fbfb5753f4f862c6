//! Variables of Mooncake that do nothing here are told, for those who rely on them.

use mooncake_settings::environment::remarks;

#[test]
fn variables_without_effect_are_told_and_others_are_not() {
    let set = ["MC_SHM", "MC_TRANSFER_TIMEOUT", "MC_GID_INDEX", "MC_DATA_TIMOUT_MS", "PATH", "MOONCAKE_MASTER"];
    let remarks = remarks(set.map(str::to_owned));
    assert_eq!(remarks.len(), 3, "{remarks:?}");
    assert_eq!(remarks[0], "MC_GID_INDEX has no effect: there is no RDMA in this version");
    assert!(remarks[1].starts_with("MC_TRANSFER_TIMEOUT has no effect: MC_DATA_TIMEOUT_MS"), "{remarks:?}");
    assert_eq!(remarks[2], "not known here, without effect: MC_DATA_TIMOUT_MS");
}
