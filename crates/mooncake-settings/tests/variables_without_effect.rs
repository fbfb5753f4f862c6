//! Variables of Mooncake that do nothing here are told, for those who rely on them.

use mooncake_settings::environment::{Reader, remarks};

const SET: [&str; 19] = [
    "MC_SHM",
    "MC_TRANSFER_TIMEOUT",
    "MC_LOOKUP_TIMEOUT_MS",
    "MC_GID_INDEX",
    "MC_DATA_TIMOUT_MS",
    "PATH",
    "MOONCAKE_MASTER",
    "MOONCAKE_STATE_DIR",
    "MOONCAKE_OFFLOAD_ENABLED",
    "MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS",
    "MOONCAKE_CONFIG_PATH",
    "MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT",
    "MC_MAX_SGE",
    "MC_MAX_WR",
    "MC_MTU",
    // SGLang reads these, and its quick start asks for the first two.
    "MOONCAKE_CHECK_SERVER",
    "MOONCAKE_MASTER_METRICS_PORT",
    "MOONCAKE_STANDALONE_STORAGE",
    "MOONCAKE_CLIENT",
];

#[test]
fn variables_without_effect_are_told_to_stores_and_engines_and_others_are_not() {
    for reader in [Reader::Store, Reader::Engine] {
        let mut remarks = remarks(reader, SET.map(str::to_owned));
        // An engine reads it.
        let told = remarks.extract_if(.., |told| told.contains("MC_TRANSFER_TIMEOUT")).next();
        let is_told = |told: &String| told.starts_with("MC_TRANSFER_TIMEOUT has no effect: MC_DATA_TIMEOUT_MS");
        assert_eq!(told.as_ref().map(is_told), (reader == Reader::Store).then_some(true), "{told:?}");
        let of_rdma =
            "MC_GID_INDEX, MC_MAX_WR, MC_MTU have no effect: RDMA is of transfer engines alone in this version";
        let told = remarks.extract_if(.., |told| told.contains("MC_GID_INDEX")).collect::<Vec<_>>();
        assert_eq!(told, if reader == Reader::Store { vec![of_rdma] } else { vec![] });
        let expected = [
            "MC_MAX_SGE has no effect: RDMA of this version has no use for it",
            "MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT, MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS have no effect: \
             a tier has files of its own, and few settings (docs/tiers.md)",
            "not known here, without effect: MC_DATA_TIMOUT_MS",
        ];
        assert_eq!(remarks, expected);
    }
}
