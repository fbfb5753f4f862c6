//! Every flag of `mooncake simulate`.

use crate::setting::{Setting, Type};
use crate::tables::pool::JSON;

/// `mooncake simulate`, in the order of `--help`.
pub(crate) const SIMULATE: &[Setting] = &[
    Setting::supported(
        "block_size",
        Type::Size,
        "64MB",
        "bytes of a block of the trace, over all layers and ranks: tokens of a block x layers x 2 x KV heads x head \
         size x bytes of a number. The default is 512 tokens of Llama 3.1 8B in 16 bits",
    ),
    Setting::supported(
        "capacity",
        Type::Text,
        "",
        "memory of the pool, as in 64GB,128GB; without it ten sizes, from a hundredth of the distinct blocks to all",
    ),
    Setting::supported(
        "target",
        Type::Ratio,
        "0.95",
        "share of what memory for all blocks would find: the least memory that finds so much is searched",
    ),
    Setting::supported("svg", Type::Text, "", "a file for a chart"),
    JSON,
    Setting::supported(
        "default_kv_lease_ttl",
        Type::Duration,
        "2s",
        "as of the master: how long an existence query protects what it found from eviction",
    ),
];
