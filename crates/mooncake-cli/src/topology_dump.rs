//! `mooncake topology-dump`: which network devices are near which memory.

use mooncake_settings::{SettingError, TOPOLOGY_DUMP, environment};
use mooncake_transfer_engine::Topology;

use crate::flags;
use crate::logging::say;

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// The command line.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// A file that cannot be read.
    #[error("cannot read {path}: {source}")]
    File {
        /// Its path.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
    /// A file that is no matrix.
    #[error("{path} is no matrix of network devices: {source}")]
    Matrix {
        /// Its path.
        path: String,
        /// Why not.
        source: serde_json::Error,
    },
    /// The file is to come from a variable that is not set.
    #[error("--use_custom_topo shows the file that MC_CUSTOM_TOPO_JSON names, which is not set, or is empty")]
    NoFile,
}

/// Prints the matrix.
pub fn run(args: impl IntoIterator<Item = String>) -> Result<(), DumpError> {
    let Some(given) = flags::read(&TOPOLOGY_DUMP, args)? else { return Ok(()) };
    let mut custom = given.text("custom_topo_json").filter(|path| !path.is_empty()).map(str::to_owned);
    if custom.is_none() && given.boolean("use_custom_topo") {
        let named = environment::variable("MC_CUSTOM_TOPO_JSON").filter(|path| !path.is_empty());
        custom = Some(named.ok_or(DumpError::NoFile)?);
    }
    let (mode, topology) = match custom {
        Some(path) => {
            let json = std::fs::read_to_string(&path);
            let json = json.map_err(|source| DumpError::File { path: path.clone(), source })?;
            let topology = Topology::parse(&json).map_err(|source| DumpError::Matrix { path: path.clone(), source })?;
            (format!("custom ({path})"), topology)
        }
        None => {
            let names = given.text_or_default("device_name").split(',').map(str::trim);
            let only: Vec<String> = names.filter(|name| !name.is_empty()).map(str::to_owned).collect();
            ("discover".to_owned(), Topology::discover(&only))
        }
    };
    match given.boolean("json") {
        true => say(&format!("{}\n", topology.to_json())),
        // As scripts that read Mooncake's know it.
        false => say(&format!("Local topology [te/{mode}]: {}\n", topology.to_json())),
    }
    Ok(())
}
