//! The promises of segments and links, a file each. They are one program: building one for each takes
//! longer than running them. What counts or limits something of its whole process is a program of its own.

mod support;

mod epochs_wait_for_every_mapped_process;
mod every_wait_ends;
mod fences_wait_for_proof;
mod links_end_for_good;
mod memory_outlives_its_owners;
mod round_trips_on_every_path;
mod several_networks;
mod shared_memory_is_tried_again;
mod the_ends_of_processes_are_told;
mod unsafe_memory_is_not_mapped;
mod wrong_bytes_are_never_returned;

#[test]
fn other_process() {
    support::play_role();
}
