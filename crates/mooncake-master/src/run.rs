//! The process `mooncake_master`: flags, logging, signals, exit codes.

use std::io::Write;
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::flags::{self, CommandLine};
use crate::master;
use crate::settings::{Settings, Verbosity};

/// Runs a master until SIGINT or SIGTERM. `args` is the command line without
/// the program's name; `after_bulk_free` is called when many objects were
/// freed, for allocators that want to be told.
pub fn run(args: impl IntoIterator<Item = String>, after_bulk_free: Option<fn()>) -> ExitCode {
    let given = match flags::parse(args) {
        Ok(CommandLine::Help(text) | CommandLine::Version(text)) => {
            // A pager that has seen enough closes the pipe: no reason to panic.
            let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
            return ExitCode::SUCCESS;
        }
        Ok(CommandLine::Run(given)) => given,
        Err(error) => return fail(&error),
    };
    let settings = match Settings::from_flags(&given, |name| std::env::var(name).ok()) {
        Ok(settings) => Settings { after_bulk_free, ..settings },
        Err(error) => return fail(&error),
    };
    start_logging(settings.verbosity);
    raise_descriptor_limit();
    let workers = std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 8);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(workers).thread_name("master").enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(serve(settings)),
        Err(error) => fail(&error),
    }
}

async fn serve(settings: Settings) -> ExitCode {
    let signals = signal(SignalKind::interrupt()).and_then(|i| Ok((i, signal(SignalKind::terminate())?)));
    let (mut interrupt, mut terminate) = match signals {
        Ok(signals) => signals,
        Err(error) => return fail(&error),
    };
    let master = tokio::select! {
        started = master::serve(settings) => match started {
            Ok(master) => master,
            Err(error) => return fail(&error),
        },
        // Replay is read-only until its end: nothing is lost by leaving it.
        _ = interrupt.recv() => return ExitCode::SUCCESS,
        _ = terminate.recv() => return ExitCode::SUCCESS,
    };
    let code = tokio::select! {
        _ = interrupt.recv() => ExitCode::SUCCESS,
        _ = terminate.recv() => ExitCode::SUCCESS,
        () = master.failed() => ExitCode::FAILURE,
    };
    tracing::info!("master stops");
    master.shutdown().await;
    code
}

fn start_logging(verbosity: Verbosity) {
    let level = match verbosity {
        Verbosity::Error => "error",
        Verbosity::Warning => "warn",
        Verbosity::Info => "info",
        Verbosity::Debug => "debug",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .try_init();
    if let Err(error) = started {
        eprintln!("logging was set up already: {error}");
    }
}

/// A connection is a descriptor, and the usual soft limit is 1,024 of them.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
    {
        tracing::warn!(%error, "the limit of open files stays at {:?}", limit.current);
    }
}

fn fail(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("mooncake_master: {error}");
    ExitCode::FAILURE
}
