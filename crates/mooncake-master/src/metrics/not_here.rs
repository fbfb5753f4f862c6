//! Metrics of Mooncake's master about things that this one does not have: told as 0, so that its dashboard draws every
//! panel and alerts that are written for it have something to look at.

use mooncake_metrics::{Histogram, Page, Unit};

/// Requests that no client can make here, and what Mooncake counts of them.
const REQUESTS: &[(&str, &str)] = &[
    ("get_replica_list_by_regex", "look-ups by pattern"),
    ("mount_nof_segment", "mounts of NVMe-oF segments"),
    ("unmount_nof_segment", "unmounts of NVMe-oF segments"),
    ("remount_nof_segment", "clients that came back with NVMe-oF segments"),
    ("copy_start", "copies of objects that began"),
    ("copy_end", "copies of objects that ended"),
    ("copy_revoke", "copies of objects that were given up"),
    ("move_start", "moves of objects that began"),
    ("move_end", "moves of objects that ended"),
    ("move_revoke", "moves of objects that were given up"),
    ("create_copy_task", "tasks of copying that were asked for"),
    ("create_move_task", "tasks of moving that were asked for"),
    ("query_task", "questions about tasks"),
    ("fetch_tasks", "clients that came for tasks"),
    ("update_task", "reports about tasks"),
    ("evict_disk_replica", "copies on disks that were evicted"),
];

/// Counters.
const COUNTERS: &[(&str, &str)] = &[
    ("master_batch_query_ip_requests_total", "questions for clients' addresses"),
    ("master_batch_query_ip_items_total", "clients in questions for addresses"),
    ("master_attempted_evictions_nof", "evictions from NVMe-oF that were tried"),
    ("master_successful_evictions_nof", "evictions from NVMe-oF that made room"),
    ("master_evicted_key_count_nof", "objects evicted from NVMe-oF"),
    ("master_evicted_size_bytes_nof", "bytes evicted from NVMe-oF"),
    ("master_nof_heartbeat_success_total", "NVMe-oF targets that answered"),
    ("master_nof_heartbeat_failure_total", "NVMe-oF targets that answered with an error"),
    ("master_nof_heartbeat_timeout_total", "NVMe-oF targets that did not answer"),
    ("master_nof_segments_unmounted_by_heartbeat_total", "NVMe-oF segments taken out as their target was silent"),
    ("master_promotion_candidate_recorded_total", "objects on disks that were set down to be copied later"),
    ("master_promotion_candidate_admitted_total", "of these, those that were copied to memory"),
    ("master_promotion_candidate_admission_rejected_total", "of these, those that were not let in"),
    ("master_promotion_candidate_expired_evaluated_total", "of these, those that were looked at in vain"),
    ("master_promotion_candidate_expired_unevaluated_total", "of these, those that were never looked at"),
    ("master_promotion_candidate_dropped_limit_total", "objects on disks that were too many to be set down"),
];

/// Gauges.
const GAUGES: &[(&str, &str)] = &[
    ("master_nof_allocated_bytes", "bytes taken in NVMe-oF segments"),
    ("master_total_nof_capacity_bytes", "bytes of NVMe-oF segments"),
];

/// Tells all of them.
pub fn tell(out: &mut Page) {
    out.section("What is not here: always 0, for dashboards that ask for it");
    for (name, help) in REQUESTS {
        out.counter(&format!("master_{name}_requests_total"), help, 0);
        out.counter(&format!("master_{name}_failures_total"), &format!("{help}: those that failed"), 0);
    }
    COUNTERS.iter().for_each(|(name, help)| out.counter(name, help, 0));
    GAUGES.iter().for_each(|(name, help)| out.gauge(name, help, 0));
    let nothing = Histogram::new(Unit::Milliseconds, &[1_000_000, 10_000_000, 100_000_000, 1_000_000_000]).read();
    out.histogram("master_nof_heartbeat_probe_latency_ms", "how long NVMe-oF targets took to answer", &nothing);
}
