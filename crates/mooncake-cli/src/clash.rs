//! Mooncake installs commands of the same names.
//!
//! Its wheel and ours write the same files, in either order of installation.
//! The Python modules look for that on import; this is the same for the binary.

use std::fs;
use std::path::{Path, PathBuf};

const PREFIX: &str = "mooncake_transfer_engine";
const OURS: &str = "mooncake-rs";
const ALLOW: &str = "MOONCAKE_ALLOW_CLASH";

/// Another distribution owns the same commands.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} and {OURS} are both installed in {}: each owns the package 'mooncake' and the command 'mooncake_master', and \
     their files are mixed now. Keep one of them. To keep {OURS}:\n    \
     pip uninstall -y {} {OURS} && pip install {OURS}\n({ALLOW}=1 starts all the same.)",
    .rivals.join(", "), .folder.display(), .rivals.join(" ")
)]
pub struct Clash {
    folder: PathBuf,
    rivals: Vec<String>,
}

/// Looks into the Python environment that this binary is installed in, if it is.
pub fn look() -> Result<(), Clash> {
    if std::env::var_os(ALLOW).is_some_and(|value| value == "1") {
        return Ok(());
    }
    let Ok(binary) = std::env::current_exe() else { return Ok(()) };
    // PREFIX/bin/mooncake
    match binary.parent().and_then(Path::parent) {
        Some(prefix) => look_in(prefix),
        None => Ok(()),
    }
}

fn look_in(prefix: &Path) -> Result<(), Clash> {
    for lib in ["lib", "lib64"] {
        for python in entries(&prefix.join(lib), |name| name.starts_with("python3")) {
            for packages in ["site-packages", "dist-packages"] {
                let folder = prefix.join(lib).join(&python).join(packages);
                let rivals: Vec<String> =
                    entries(&folder, |name| name.starts_with(PREFIX) && name.ends_with(".dist-info"))
                        .iter()
                        .map(|name| name.split('-').next().unwrap_or(name).replace('_', "-"))
                        .collect();
                if !rivals.is_empty() {
                    return Err(Clash { folder, rivals });
                }
            }
        }
    }
    Ok(())
}

/// Names in a folder that fit, sorted; none if it cannot be read.
fn entries(folder: &Path, fits: impl Fn(&str) -> bool) -> Vec<String> {
    let Ok(listing) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> =
        listing.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).filter(|name| fits(name)).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rival_beside_us_is_named_with_the_remedy() {
        let prefix = tempfile::tempdir().unwrap();
        let packages = prefix.path().join("lib/python3.11/site-packages");
        fs::create_dir_all(packages.join("mooncake_rs-0.1.0.dist-info")).unwrap();
        assert_eq!(look_in(prefix.path()), Ok(()));
        fs::create_dir_all(packages.join("mooncake_transfer_engine_cuda13-0.3.13.dist-info")).unwrap();
        let said = look_in(prefix.path()).unwrap_err().to_string();
        assert!(said.contains("pip uninstall -y mooncake-transfer-engine-cuda13 mooncake-rs && pip install"), "{said}");
    }

    #[test]
    fn a_binary_outside_of_any_environment_just_runs() {
        assert_eq!(look_in(Path::new("/nonexistent/prefix")), Ok(()));
    }
}
