//! The promises of a client, a file each. They are one program: building one for each takes
//! longer than running them. What counts or limits something of its whole process is a program of its own.

mod bit_flip;
mod child;
mod cluster;
mod proxy;

mod caller_faults;
mod ends_of_puts;
mod flipped_byte;
mod get_sessions;
mod groups;
mod hello_pool_example;
mod lost_replies;
mod master_away;
mod older_log;
mod older_masters;
mod patterns_and_descriptors;
mod pressure;
mod put_sessions;
mod raised_epochs;
mod ranges;
mod replicas;
mod round_trips;
mod the_ends_of_readers;
mod two_processes;
mod upserts;
mod views;
