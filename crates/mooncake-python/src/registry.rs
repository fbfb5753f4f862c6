//! Tables that Python reads, so that it has none of its own.

use std::collections::HashMap;

use pyo3::prelude::*;

use crate::docs::DOCS;
use mooncake_codes::CODES;

/// Attribute, variable and default of each value of a `MooncakeConfig`.
#[pyfunction]
fn _config_values() -> Vec<(&'static str, &'static str, &'static str)> {
    let values = mooncake_settings::tables::mooncake_config::VALUES.iter();
    values.map(|value| (value.attribute, value.variable.name, value.variable.default)).collect()
}

/// Number, name, name of the exception (or "") and meaning of each code.
#[pyfunction]
fn _error_codes() -> Vec<(i64, &'static str, &'static str, &'static str)> {
    CODES.iter().map(|code| (code.number, code.name, code.exception, code.meaning)).collect()
}

/// The docstring of each method of the store, by its name.
#[pyfunction]
fn _docs() -> HashMap<&'static str, &'static str> {
    DOCS.iter().copied().collect()
}

/// Adds them to the module.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(_config_values, module)?)?;
    module.add_function(wrap_pyfunction!(_docs, module)?)?;
    module.add_function(wrap_pyfunction!(_error_codes, module)?)
}
