//! The promises of the core, a file each. They are one program: to build one for each takes longer than to run them.

mod pool;

mod allocator_never_overlaps;
mod core_agrees_with_a_simple_model;
mod epochs_are_told_apart;
mod eviction_keeps_its_promises;
mod figures;
mod figures_of_tiers;
mod groups_stay_and_leave_together;
mod listed_views_are_compared_in_slices;
mod memory_outlives_its_process;
mod mutations_are_numbered;
mod objects_come_back_from_tiers;
mod objects_come_to_tiers;
mod only_its_writer_ends_a_put;
mod owners_prove_before_reuse;
mod pressure_from_many_writers;
mod puts_are_placed_and_committed;
mod puts_hear_of_room_at_once;
mod removals_by_pattern;
mod replicas_are_cleared_by_request;
mod replicas_wait_for_the_populator;
mod safety_events_are_counted;
mod sessions_answer_for_themselves;
mod sessions_come_and_go;
mod tiers_hold_up_nothing;
mod upserts_keep_the_old_value;
mod views_hold_room_for_a_while_only;
mod waiting_is_fair_and_bounded;
mod what_is_left_behind_is_cleared_in_steps;
