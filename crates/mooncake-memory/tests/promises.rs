//! The promises of memory, a file each. They are one program: building one for each takes
//! longer than running them. What counts or limits something of its whole process is a program of its own.

mod common_memory_keeps_its_file;
mod files_as_memory;
mod foreign_memory;
mod golden;
mod memory_is_adopted;
mod round_trips;
mod torn_reads;
