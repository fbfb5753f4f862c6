//! Docstrings, as `build.rs` has read them out of the stub: for methods that are written here, and for those in Python.

include!(concat!(env!("OUT_DIR"), "/docs.rs"));
