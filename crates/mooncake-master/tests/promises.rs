//! The promises of the master, a file each. They are one program: building one for each takes
//! longer than running them. What counts or limits something of its whole process is a program of its own.

mod support;

mod http_pages_have_the_references_shapes;
mod log_survives_what_happens_to_it;
mod logs_of_earlier_versions;
mod many_objects_come_back_quickly;
mod owners_say_what_they_have_taken;
mod retries_get_the_same_reply;
mod sessions_end_as_they_should;
mod strangers_are_cut;
