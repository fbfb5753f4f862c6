//! The process `mooncake_master`: flags, logging, signals, exit codes.

use std::process::ExitCode;
use std::time::Duration;

use mooncake_master::Settings;
use mooncake_settings::{Given, MASTER, Source};
use tokio::signal::unix::{SignalKind, signal};

use crate::logging::{self, say};
use crate::{descriptors, flags, service};

/// Runs a master until SIGINT or SIGTERM. `args` is the command line without
/// the program's name; `after_bulk_free` is called when many objects were
/// freed, for allocators that want to be told.
pub fn run(args: impl IntoIterator<Item = String>, after_bulk_free: Option<fn()>) -> ExitCode {
    let given = match flags::read(&MASTER, args) {
        Ok(Some(given)) => given,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => return fail(&error),
    };
    let settings = match Settings::from_flags(&given, |name| std::env::var(name).ok()) {
        Ok(settings) => Settings { after_bulk_free, ..settings },
        Err(error) => return fail(&error),
    };
    if given.boolean("check_config") {
        // What has to be seen does not stand below a table, nor in what scripts read.
        settings.notes.iter().for_each(|note| logging::print_stderr(&format!("note: {note}\n")));
        say(&in_force(&given));
        return ExitCode::SUCCESS;
    }
    if let Err(error) = logging::start(MASTER.name, &given, Some(settings.events.clone())) {
        return fail(&error);
    }
    let chosen = given.effective().filter(|(_, _, source)| *source != Source::Default);
    logging::say_settings(chosen.map(|(name, value, source)| (name, value.to_owned(), source.to_string())));
    descriptors::raise_limit();
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
        started = mooncake_master::serve(settings) => match started {
            Ok(master) => master,
            Err(error) => return fail(&error),
        },
        // Replay is read-only until its end: nothing is lost by leaving it.
        _ = interrupt.recv() => return ExitCode::SUCCESS,
        _ = terminate.recv() => return ExitCode::SUCCESS,
    };
    service::is_ready();
    let _fed = service::watchdog_interval().map(|every| tokio::spawn(feed(every, master.prober())));
    let code = tokio::select! {
        _ = interrupt.recv() => ExitCode::SUCCESS,
        _ = terminate.recv() => ExitCode::SUCCESS,
        () = master.failed() => ExitCode::FAILURE,
    };
    service::is_stopping();
    tracing::info!("master stops");
    master.shutdown().await;
    code
}

/// Tells a watchdog that the master goes on, for as long as its core can be asked.
async fn feed(every: Duration, probe: impl Fn() + Send + Clone + 'static) {
    loop {
        tokio::time::sleep(every).await;
        if tokio::task::spawn_blocking(probe.clone()).await.is_ok() {
            service::is_alive();
        }
    }
}

/// Settings that do something, with their sources, as a table.
fn in_force(given: &Given) -> String {
    let rows: Vec<_> = given.effective().collect();
    let width = |of: fn(&(&str, &str, Source)) -> usize| rows.iter().map(of).max().unwrap_or(0);
    let (names, values) = (width(|row| row.0.len()), width(|row| row.1.len()));
    let lines = rows.iter().map(|(name, value, source)| format!("{name:names$}  {value:values$}  {source}\n"));
    lines.collect()
}

fn fail(error: &dyn std::error::Error) -> ExitCode {
    logging::fail(MASTER.name, error);
    ExitCode::FAILURE
}
