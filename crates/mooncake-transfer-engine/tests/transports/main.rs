//! What each transport promises: one list of promises, each kept on each row. A new transport is one more row.

mod bytes;
mod forks;
mod late_writes;
#[path = "../memory/mod.rs"]
mod memory;
mod peers_that_stop;
mod refusals;
mod row;
mod unregistration;

use mooncake_test_support::child_process::role;
use row::Row;

/// What the other process of these tests is; nothing where nobody started it as something.
#[test]
fn other() {
    if let Some(row) = role().and_then(|role| Row::of_role(&role)) {
        peers_that_stop::lend(row);
    }
}

macro_rules! on_each_transport {
    ($($promise:ident::$test:ident,)+) => {
        on_each_transport!(mapped_memory, MAPPED, $($promise::$test,)+);
        on_each_transport!(between_processes, PROCESSES, $($promise::$test,)+);
        on_each_transport!(by_tcp, TCP, $($promise::$test,)+);
    };
    ($module:ident, $row:ident, $($promise:ident::$test:ident,)+) => {
        mod $module {
            $(
                #[test]
                fn $test() {
                    crate::$promise::$test(&crate::row::$row);
                }
            )+
        }
    };
}

on_each_transport! {
    bytes::sizes_from_a_byte_to_many_megabytes_go_both_ways,
    bytes::a_list_of_many_pieces_is_moved_whole_and_in_both_directions_at_once,
    bytes::batches_end_with_all_their_bytes_in_place_and_their_message_before,
    refusals::memory_that_is_not_registered_is_refused_and_the_connection_goes_on,
    refusals::local_memory_that_is_not_there_is_an_error_and_no_signal,
    unregistration::nothing_lands_in_memory_that_is_unregistered,
    unregistration::no_read_that_is_a_success_has_bytes_of_later,
    peers_that_stop::a_call_to_a_frozen_peer_ends_at_its_deadline,
    peers_that_stop::a_call_to_a_frozen_peer_ends_at_its_callers_wish,
    peers_that_stop::close_ends_a_call_to_a_frozen_peer,
    peers_that_stop::close_ends_calls_that_go_on_and_on,
    peers_that_stop::a_peer_that_was_killed_is_an_error_in_time,
    late_writes::a_write_that_was_given_up_lands_over_no_later_one,
    forks::a_forked_child_touches_nothing_and_its_parent_goes_on,
}
