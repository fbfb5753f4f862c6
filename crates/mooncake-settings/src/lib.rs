//! Every setting of the programs and of the library: one registry.
//!
//! A [`Setting`] has a name, a type, a default and one sentence. Programs have
//! a table of them ([`Program`]), read from a command line in gflags syntax and
//! from a file; the library has those of the environment ([`environment`])
//! and of `mooncake.json` ([`mooncake_config`](tables::mooncake_config)).
//! `docs/settings.md` is made from the same tables ([`reference_page`]).
#![forbid(unsafe_code)]

mod command_line;
pub mod environment;
mod file;
#[cfg(any(test, fuzzing))]
pub mod fuzz_targets;
mod given;
mod help;
mod programs;
mod reference;
mod setting;
mod similar;
pub mod tables;

pub use command_line::{CommandLine, parse};
pub use given::{Given, Source};
pub use programs::{
    BENCH, CLIENT, COMPLETIONS, DOCTOR, ENGINE_BENCH, ENGINE_SWEEP, EXPLAIN, GET, KEEPER, LS, MAN, MASTER,
    METADATA_SERVER, Operands, PROGRAMS, PROXY, PUT, Program, RM, SHOW_LINK, SIMULATE, STAT, STATE_GC, STATE_LS,
    STATUS, TIER_FORGET, TIER_LIST, TOP, TOPOLOGY_DUMP,
};
pub use reference::reference_page;
pub use setting::{Setting, SettingError, Support, Type, boolean, duration_ms};
