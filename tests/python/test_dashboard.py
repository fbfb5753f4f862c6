"""Mooncake's Grafana dashboard has a value for each name that its panels ask for, whether the thing is here or not."""

from __future__ import annotations

import re

# Of `master_...`: what its panels query, without its queries.
MASTER = """
active_clients key_count soft_pin_key_count allocated_bytes total_capacity_bytes nof_allocated_bytes
total_nof_capacity_bytes allocated_file_size_bytes total_file_capacity_bytes
put_start_requests_total put_end_requests_total put_revoke_requests_total get_replica_list_requests_total
get_replica_list_by_regex_requests_total exist_key_requests_total remove_requests_total remove_by_regex_requests_total
remove_all_requests_total ping_requests_total put_start_failures_total put_start_alloc_failures_total
put_start_object_already_exists_total put_end_failures_total put_revoke_failures_total get_replica_list_failures_total
get_replica_list_by_regex_failures_total exist_key_failures_total remove_failures_total ping_failures_total
remove_by_regex_failures_total remove_all_failures_total
mount_segment_requests_total unmount_segment_requests_total remount_segment_requests_total
mount_nof_segment_requests_total unmount_nof_segment_requests_total remount_nof_segment_requests_total
copy_start_requests_total copy_end_requests_total copy_revoke_requests_total move_start_requests_total
move_end_requests_total move_revoke_requests_total create_copy_task_requests_total create_move_task_requests_total
query_task_requests_total fetch_tasks_requests_total update_task_requests_total evict_disk_replica_requests_total
copy_start_failures_total copy_end_failures_total move_start_failures_total move_end_failures_total
create_copy_task_failures_total create_move_task_failures_total
attempted_evictions_total successful_evictions_total attempted_evictions_mem successful_evictions_mem
attempted_evictions_nof successful_evictions_nof evicted_key_count evicted_key_count_mem evicted_key_count_nof
evicted_size_bytes evicted_size_bytes_mem evicted_size_bytes_nof
promotion_in_flight promotion_admitted_total promotion_completed_total promotion_failed_total promotion_cancelled_total
promotion_expired_total promotion_completed_bytes_total promotion_rejected_frequency_total
promotion_rejected_watermark_total promotion_rejected_cap_total
nof_heartbeat_success_total nof_heartbeat_failure_total nof_heartbeat_timeout_total
nof_segments_unmounted_by_heartbeat_total snapshot_success snapshot_fail
put_start_discard_cnt put_start_release_cnt put_start_discarded_staging_size
batch_put_start_requests_total batch_put_end_requests_total batch_put_revoke_requests_total
batch_get_replica_list_requests_total batch_exist_key_requests_total batch_query_ip_requests_total
batch_replica_clear_requests_total batch_put_start_items_total batch_put_start_object_already_exists_total
batch_put_end_items_total batch_get_replica_list_items_total batch_exist_key_items_total batch_query_ip_items_total
batch_replica_clear_items_total
"""
OTHERS = """
mem_cache_hit_nums_ file_cache_hit_nums_ mem_cache_hit_bytes_total file_cache_hit_bytes_total mem_cache_nums_
file_cache_nums_ valid_get_nums_ total_get_nums_
"""
# With the keys of labels that its queries sum by.
LABELLED = {
    "master_nof_heartbeat_probe_latency_ms_bucket": {"le"},
    "master_value_size_bytes_bucket": {"le"},
    "master_snapshot_duration_ms_bucket": {"le"},
}
# Things that are not here.
ABSENT = re.compile(r"nof|_file_|^file_|copy_|move_|_task|promotion|by_regex_requests$|disk_replica|query_ip")


def told(page: str) -> dict[str, list[tuple[set[str], float]]]:
    """Keys of labels and values, by name."""
    found: dict[str, list[tuple[set[str], float]]] = {}
    for line in page.splitlines():
        if match := re.fullmatch(r"([a-z_]+)(?:\{(.*)\})? (\S+)", line):
            name, labels, value = match.groups()
            keys = set(re.findall(r'(\w+)="', labels or ""))
            found.setdefault(name, []).append((keys, float(value)))
    return found


def test_every_panel_has_something_to_draw(cluster):
    pool = cluster()
    store = pool.store()
    assert store.put("k", b"v" * 4096) == 0
    assert store.put("k", b"v" * 4096) == 0
    assert store.put_batch(["k", "l", "m"], [b"v" * 4096] * 3) == 0
    assert store.put_batch(["k", "l", "m"], [b"v" * 4096] * 3) == 0
    assert store.get("k") == b"v" * 4096
    page = told(pool.master.http("/metrics"))
    names = [f"master_{name}" for name in MASTER.split()] + OTHERS.split()
    assert len(names) == len(set(names)) > 100
    assert [name for name in names if name not in page] == []
    for name in names:
        [(keys, value)] = page[name]
        assert keys == set(), name
        assert value == 0 or not ABSENT.search(name.removeprefix("master_")), name
    for name, keys in LABELLED.items():
        assert all(keys == found for found, _ in page[name]), name
    assert page["mem_cache_hit_nums_"] == [(set(), 1.0)]
    assert page["master_put_start_object_already_exists_total"] == [(set(), 1.0)], "of the put of one key"
    assert page["master_batch_put_start_object_already_exists_total"] == [(set(), 4.0)], "of those of three"
    assert page["mooncake_put_exists_total"] == [(set(), 5.0)]
    assert max(value for _, value in page["master_value_size_bytes_bucket"]) == 3
