//! The `mooncake` binary: `mooncake COMMAND ...`. `mooncake_master` and its kin are shims that add the command.

#![forbid(unsafe_code)]

mod clash;
mod client;
mod commands;
mod completions;
mod descriptors;
mod doctor;
mod engine_tools;
mod explain;
mod flags;
mod holder;
mod journal;
mod keeper;
mod logging;
mod man;
mod master;
mod metadata_server;
mod pool;
mod proxy;
mod proxy_lists;
mod service;
mod signals;
mod simulate;
mod state;
mod terminal;
mod tier;
mod topology_dump;

use std::process::ExitCode;

use mooncake_settings::{
    CLIENT, ENGINE_BENCH, ENGINE_SWEEP, KEEPER, MASTER, METADATA_SERVER, PROXY, Program, SHOW_LINK, TOPOLOGY_DUMP,
};

use engine_tools::{bench, links, sweep};
use logging::say;

/// No master answers, and how the pool is nobody knows.
const UNREACHED: u8 = 2;

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
        "state" => ended("state", state::run(args)),
        "tier" => ended("tier", tier::run(args)),
        "status" => exits("status", UNREACHED, pool::status::run(args)),
        "top" => ended("top", pool::top::run(args)),
        "doctor" => exits("doctor", 1, doctor::run(args)),
        "ls" => exits("ls", 1, pool::objects::ls(args)),
        "stat" => exits("stat", 1, pool::objects::stat(args)),
        "put" => exits("put", 1, pool::values::put(args)),
        "get" => exits("get", 1, pool::values::get(args)),
        "rm" => exits("rm", 1, pool::values::rm(args)),
        "bench" => ended("bench", pool::bench::run(args)),
        "simulate" => ended("simulate", simulate::run(args)),
        "explain" => exits("explain", 1, explain::run(args)),
        "completions" => ended("completions", completions::run(args)),
        "man" => ended("man", man::run(args)),
        "version" | "--version" | "-V" => alone("version", args, concat!("mooncake ", env!("CARGO_PKG_VERSION"), "\n")),
        "help" | "--help" | "-h" => alone("help", args, &commands::help()),
        "" => {
            logging::print_stderr(&commands::help());
            ExitCode::from(2)
        }
        other => {
            logging::print_stderr(&format!("mooncake: no command {other:?}\n\n{}", commands::help()));
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
    let mut first = commands::all().filter(|known| known.program.is_some()).map(|known| known.words.split_once(' '));
    let is_one = commands::all().any(|known| known.program.is_some() && known.words == word);
    // `state` and `tier` have commands of their own, and no version.
    let is_group = first.any(|known| known.is_some_and(|(group, _)| group == word));
    let has_flag = is_one || is_group && command == "help";
    let meant = if has_flag { format!("{word} --{command}") } else { command.to_owned() };
    logging::print_stderr(&format!(
        "mooncake {command}: unexpected argument {word:?}; did you mean mooncake {meant}?\n"
    ));
    ExitCode::from(2)
}

/// The exit code of a command that has none of its own.
fn ended<E: std::error::Error>(command: &str, done: Result<(), E>) -> ExitCode {
    exits(command, 1, done.map(|()| ExitCode::SUCCESS))
}

/// The exit code of a command, `failed` where it could not do it.
fn exits<E: std::error::Error>(command: &str, failed: u8, done: Result<ExitCode, E>) -> ExitCode {
    done.unwrap_or_else(|error| {
        logging::print_stderr(&format!("mooncake {command}: {}\n", terminal::plain(&error.to_string())));
        ExitCode::from(failed)
    })
}

/// None, or the exit code of a program that could not go on.
fn started<E: std::error::Error>(program: &Program, step: Result<(), E>) -> Option<ExitCode> {
    let error = step.err()?;
    logging::fail(program.name, &error);
    Some(ExitCode::FAILURE)
}
