//! What lanes promise, over fake verbs.

mod lanes;
mod support;
