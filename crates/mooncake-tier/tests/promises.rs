//! The promises of tiers, a file each. They are one program: building one for each takes
//! longer than running them. What counts or limits something of its whole process is a program of its own.

mod support;

mod batches_are_read_as_their_disk_is_fastest;
mod owners_answer_for_what_they_wrote;
mod records_are_read_ahead;
mod records_prove_themselves;
mod what_a_disk_failed_to_write_is_read_back;
mod what_disks_do_is_counted;
