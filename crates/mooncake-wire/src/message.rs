//! The messages, generated from `proto/control.proto`.

include!(concat!(env!("OUT_DIR"), "/mooncake.control.v1.rs"));
