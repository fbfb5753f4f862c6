//! Each check of `cargo xtask` on small repositories: what it finds, where, what mends it, and that it finds nothing
//! else.

mod layers;
mod repository;
mod words;
