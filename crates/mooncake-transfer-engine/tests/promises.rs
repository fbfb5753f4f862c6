//! The promises of the transfer engine, a file each. They are one program: building one for each takes
//! longer than running them. What counts or limits something of its whole process is a program of its own.

mod host;
mod memory;
mod memory_metadata;
mod ordered_metadata;
mod relay;

mod calls_of_an_engine;
mod links_name_the_path_that_bytes_took;
mod links_that_are_cut;
mod local_ends_stay_inside;
mod mapped_memory_whose_user_goes;
mod memory_that_is_mapped;
mod names_in_a_service;
mod other_users;
mod peer_names;
mod peers_that_freeze;
mod peers_that_misbehave;
mod protocols_are_honoured;
mod pulls_within_the_host;
mod several_networks;
mod shared_segments;
mod transfers_by_rdma;
mod waits_for_a_service;
mod where_an_engine_listens;
mod writes_that_were_given_up;
