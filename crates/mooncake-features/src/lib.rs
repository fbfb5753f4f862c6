//! Nothing but features of dependencies. A wheel has programs, an extension module and a C library, which are built one
//! after the other: where all of them ask for the same features, what they share is built once.
#![forbid(unsafe_code)]
