//! What the bindings promise, each file a promise.

mod bytes_arrive;
mod layouts_match_the_headers;
