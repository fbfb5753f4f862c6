//! What the bindings promise, each file a promise.

mod layouts_match_the_headers;
