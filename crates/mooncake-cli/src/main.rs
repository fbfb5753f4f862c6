//! The `mooncake` binary: `mooncake COMMAND ...`. `mooncake_master` and its kin are shims that add the command.

#![forbid(unsafe_code)]

mod clash;
mod client;
mod descriptors;
mod engine_tools;
mod flags;
mod holder;
mod journal;
mod keeper;
mod logging;
mod master;
mod metadata_server;
mod proxy;
mod proxy_lists;
mod service;
mod signals;
mod state;
mod tier;
mod topology_dump;

use std::process::ExitCode;

use mooncake_settings::{
    CLIENT, ENGINE_BENCH, ENGINE_SWEEP, KEEPER, MASTER, METADATA_SERVER, PROXY, Program, SHOW_LINK, TOPOLOGY_DUMP,
};

use engine_tools::{bench, links, sweep};
use logging::say;

const HELP: &str = "\
mooncake: a distributed KV-cache pool for LLM inference

  mooncake master [flags]   metadata master (also: mooncake_master)
  mooncake client [flags]   storage node: lends memory to the pool (also: mooncake_client)
  mooncake keeper [flags]   holds the memory of a storage node over its restarts
  mooncake metadata-server  metadata of transfer engines over HTTP (also: mooncake_http_metadata_server)
  mooncake proxy            sends requests to prefill and decode instances (also: mooncake_proxy)
  mooncake engine-bench     speed of transfer engines (also: transfer_engine_bench)
  mooncake engine-sweep     the same over many sizes (also: tebench)
  mooncake show-link        by which path an engine reaches a peer (also: show_link)
  mooncake topology-dump    network devices near memory (also: transfer_engine_topology_dump)
  mooncake state ls         what masters have left on this machine: state folders, witnesses
  mooncake state gc         removes what is not in use of that
  mooncake tier list        tiers that a master knows
  mooncake tier forget      has it forget one that is gone for good, or all
  mooncake version          version of this binary
  mooncake help             this text

`mooncake COMMAND --help` lists the flags of a command.
";

fn main() -> ExitCode {
    // What is no UTF-8 is no flag either, and is then named as well as it can be.
    let mut args = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned());
    let command = args.next().unwrap_or_default();
    match command.as_str() {
        "master" => {
            mooncake_os::keep_frees_short();
            started(&MASTER, clash::look()).unwrap_or_else(|| master::run(args, Some(mooncake_os::trim_heap)))
        }
        "client" => {
            started(&CLIENT, clash::look()).or_else(|| started(&CLIENT, client::run(args))).unwrap_or(ExitCode::SUCCESS)
        }
        "keeper" => started(&KEEPER, keeper::run(args)).unwrap_or(ExitCode::SUCCESS),
        "metadata-server" => started(&METADATA_SERVER, clash::look())
            .or_else(|| started(&METADATA_SERVER, metadata_server::run(args)))
            .unwrap_or(ExitCode::SUCCESS),
        "proxy" => started(&PROXY, proxy::run(args)).unwrap_or(ExitCode::SUCCESS),
        "engine-bench" => started(&ENGINE_BENCH, clash::look())
            .or_else(|| started(&ENGINE_BENCH, bench::run(args)))
            .unwrap_or(ExitCode::SUCCESS),
        "engine-sweep" => started(&ENGINE_SWEEP, clash::look())
            .or_else(|| started(&ENGINE_SWEEP, sweep::run(args)))
            .unwrap_or(ExitCode::SUCCESS),
        "show-link" => started(&SHOW_LINK, clash::look())
            .or_else(|| started(&SHOW_LINK, links::run(args)))
            .unwrap_or(ExitCode::SUCCESS),
        "topology-dump" => started(&TOPOLOGY_DUMP, clash::look())
            .or_else(|| started(&TOPOLOGY_DUMP, topology_dump::run(args)))
            .unwrap_or(ExitCode::SUCCESS),
        "state" => match state::run(args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                logging::print_stderr(&format!("mooncake state: {error}\n"));
                ExitCode::FAILURE
            }
        },
        "tier" => match tier::run(args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                logging::print_stderr(&format!("mooncake tier: {error}\n"));
                ExitCode::FAILURE
            }
        },
        "version" | "--version" | "-V" => alone("version", args, concat!("mooncake ", env!("CARGO_PKG_VERSION"), "\n")),
        "help" | "--help" | "-h" => alone("help", args, HELP),
        "" => {
            logging::print_stderr(HELP);
            ExitCode::from(2)
        }
        other => {
            logging::print_stderr(&format!("mooncake: no command {other:?}\n\n{HELP}"));
            ExitCode::from(2)
        }
    }
}

/// Says the text of a command that takes no words.
fn alone(command: &str, mut words: impl Iterator<Item = String>, text: &str) -> ExitCode {
    let Some(word) = words.next() else {
        say(text);
        return ExitCode::SUCCESS;
    };
    let has_version = !matches!(&*word, "state" | "tier");
    let has_flag = HELP.contains(&format!("  mooncake {word} ")) && (command != "version" || has_version);
    let meant = if has_flag { format!("{word} --{command}") } else { command.to_owned() };
    logging::print_stderr(&format!(
        "mooncake {command}: unexpected argument {word:?}; did you mean mooncake {meant}?\n"
    ));
    ExitCode::from(2)
}

/// None, or the exit code of a program that could not go on.
fn started<E: std::error::Error>(program: &Program, step: Result<(), E>) -> Option<ExitCode> {
    let error = step.err()?;
    logging::fail(program.name, &error);
    Some(ExitCode::FAILURE)
}
