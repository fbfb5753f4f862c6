//! The wheel that this binary is part of.

/// Its version, which is this binary's.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Installs one of that version, as `make wheel` leaves it in `dist/`: no index has it.
pub fn install(version: &str) -> String {
    format!("pip install --force-reinstall --no-deps PATH/mooncake_rs-{version}-*.whl")
}
