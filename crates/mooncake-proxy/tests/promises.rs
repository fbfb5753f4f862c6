//! The promises of the proxy, a file each. They are one program: building one for each takes
//! longer than running them. What counts or limits something of its whole process is a program of its own.

mod mock_instances;

mod hostile_peers_are_bounded;
mod kv_cache_goes_from_server_to_server;
mod requests_find_their_way;
mod what_happened_can_be_told;
