//! `mooncake doctor`: what is wrong with a pool and with this machine as a part of it, and what mends it.

mod addresses;
mod answer;
#[cfg(test)]
mod broken;
mod cgroup;
mod clock;
mod descriptors;
mod finding;
mod installation;
mod limits;
mod listeners;
mod litter;
mod log;
mod master;
mod member;
mod memory;
mod peers;
mod pool;
mod reach;
mod readings;
mod report;
mod segments;
mod sharing;
mod state;
mod wheel;

use std::process::ExitCode;

use mooncake_settings::{DOCTOR, SettingError};

use crate::flags;
use crate::logging::say;
use crate::terminal::{Paint, has_colour};
use finding::Severity;
use readings::Readings;

/// Something is an error.
const ILL: u8 = 1;

/// Looks at everything, and says what it found.
pub fn run(args: impl IntoIterator<Item = String>) -> Result<ExitCode, SettingError> {
    let Some(given) = flags::read(&DOCTOR, args)? else { return Ok(ExitCode::SUCCESS) };
    let readings = Readings::read(&given);
    let (findings, master) = (readings.judged(), &readings.pool.address);
    match given.boolean("json") {
        true => say(&format!("{:#}\n", report::as_json(&findings, master))),
        false => say(&report::screen(&findings, master, Paint(has_colour()))),
    }
    Ok(match report::worst(&findings) {
        Severity::Error => ExitCode::from(ILL),
        _ => ExitCode::SUCCESS,
    })
}
