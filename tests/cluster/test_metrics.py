"""What /metrics of real processes tells, and that its labels stay few."""

import math
import re
import time
from collections.abc import Iterator
from typing import Any

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from tests.cluster.harness import Cluster

LEAF_LIFE_S = 7 * 86_400
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-")


def families(cluster: Cluster, member: Member) -> dict[str, Metric]:
    answer = cluster.get("/metrics", node=member, token=None)
    assert answer.status == 200
    return {family.name: family for family in text_string_to_metric_families(answer.body.decode())}


def value(found: dict[str, Metric], name: str, **labels: str) -> float:
    """The one sample of this name with these labels, whatever others it has."""
    samples = [
        sample.value
        for family in found.values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(samples) == 1, (name, labels, samples)
    return float(samples[0])


def test_every_process_tells_when_its_certificates_end(cluster: Cluster) -> None:
    for member in cluster.members:
        found = families(cluster, member)
        name = "filestore_certificate_expiry_timestamp_seconds"
        leaf, intermediate, root = (
            value(found, name, certificate=kind) for kind in ("leaf", "intermediate", "root")
        )
        assert time.time() < leaf <= time.time() + LEAF_LIFE_S
        assert leaf < intermediate < root


def test_every_process_knows_its_clock_against_the_leader_s(cluster: Cluster) -> None:
    for member in cluster.members:
        found = families(cluster, member)
        assert math.isfinite(value(found, "filestore_view_age_seconds"))
        assert abs(value(found, "filestore_clock_offset_seconds")) < 60  # one machine, one clock


def test_leader_tells_how_nodes_jobs_and_disk_are(cluster: Cluster) -> None:
    cluster.store(b"counted")
    found = families(cluster, cluster.leader())
    assert value(found, "filestore_nodes", state="healthy") == len(cluster.nodes)
    assert value(found, "filestore_nodes", state="down") == 0
    assert value(found, "filestore_files") > 0
    assert value(found, "filestore_used_bytes") >= len(b"counted")
    assert value(found, "filestore_job_running", job_name="snapshot") in (0, 1)
    assert value(found, "filestore_raft_log_size_bytes") > 0
    assert value(found, "filestore_database_size_bytes") > 0
    assert 0 < value(found, "filestore_disk_free_bytes") < value(found, "filestore_disk_size_bytes")
    assert value(found, "filestore_replicas_wanted") == len(cluster.nodes)
    assert value(found, "filestore_write_quorum") == 2
    assert value(found, "filestore_raft_followers") == len(cluster.coordinators)
    assert value(found, "filestore_blobs_on_last_replica") == 0
    assert value(found, "filestore_rpc_calls_total", call="propose", outcome="ok") > 0


def test_newest_run_of_a_job_tells_how_far_it_is(cluster: Cluster) -> None:
    content = b"read again" * 1000
    cluster.store(content)

    def told() -> bool:
        found = families(cluster, cluster.leader())
        looked, done, read_bytes = (
            value(found, f"filestore_job_{name}", job_name="scrub") for name in ("looked", "done", "bytes")
        )
        is_over = done == looked and value(found, "filestore_job_left", job_name="scrub") == 0
        if is_over and looked >= 3 and read_bytes >= 3 * len(content):
            return True
        if is_over:  # of an earlier run, or one that began before every replica was there
            assert cluster.post("/jobs/scrub").status in (202, 409)
        return False

    assert cluster.post("/jobs/scrub").status in (202, 409)
    wait_until(told, what="the numbers of a run", timeout_s=60)
    assert value(families(cluster, cluster.leader()), "filestore_job_looked", job_name="rebalance") >= 0


def test_completed_job_has_its_time_on_every_coordinator(cluster: Cluster) -> None:
    begun_at_s = int(time.time())
    run = cluster.post("/jobs/snapshot")
    assert run.status in (202, 409)

    def all_tell() -> bool:
        name = "filestore_job_completed_timestamp_seconds"
        told = [value(families(cluster, each), name, job_name="snapshot") for each in cluster.coordinators]
        return min(told) >= begun_at_s

    wait_until(all_tell, what="the end of the job", timeout_s=30)
    for member in cluster.coordinators:
        assert value(families(cluster, member), "filestore_job_failed", job_name="snapshot") == 0


def test_node_tells_since_when_all_its_replicas_were_read(cluster: Cluster) -> None:
    def told(nodes: list[Any]) -> bool:
        return all(node["scrubbed_since"] for node in nodes)

    wait_until(lambda: told(cluster.get("/cluster/status").json["nodes"]), what="scrubbing", timeout_s=60)
    shown = cluster.filestore("status").stdout.decode()
    assert re.search(r"oldest unscrubbed: on \S+, since 20", shown)
    for member in cluster.nodes:
        since_s = value(families(cluster, member), "filestore_scrubbed_since_timestamp_seconds")
        assert 0 < since_s <= time.time()


def test_disk_of_a_node_that_takes_bytes_is_writable(cluster: Cluster) -> None:
    for node in cluster.nodes:
        assert value(families(cluster, node), "filestore_disk_writable") == 1


def test_request_counts_under_the_template_of_its_route_also_one_without_parameters(cluster: Cluster) -> None:
    member = cluster.nodes[0]
    assert cluster.get("/buckets", node=member).status == 200
    assert cluster.get("/nowhere", node=member).status == 404
    labels = {"method": "GET", "status": "200"}
    counts = "filestore_http_requests_total"
    found = families(cluster, member)
    assert value(found, counts, route="/api/v1/buckets", **labels) >= 1
    assert value(found, counts, route="(none)", method="GET", status="404") >= 1
    assert value(families(cluster, member), counts, route="/metrics", **labels) >= 1


def test_scrape_is_a_request_in_progress(cluster: Cluster) -> None:
    for member in cluster.members:
        assert value(families(cluster, member), "filestore_http_requests_in_progress") >= 1, member.id


def labels_of(cluster: Cluster) -> Iterator[tuple[str, str]]:
    for member in cluster.members:
        for name, family in families(cluster, member).items():
            for sample in family.samples:
                yield from ((name, text) for text in sample.labels.values())


def test_no_label_names_a_member_a_user_or_a_file(cluster: Cluster) -> None:
    file_uuid = cluster.store(b"unnamed", token=cluster.user_token("metrics-user"))
    assert cluster.get(f"/files/{file_uuid}").status == 200
    named = {"metrics-user", file_uuid} | {member.id for member in cluster.members}
    assert not [(name, text) for name, text in labels_of(cluster) if text in named or UUID.search(text)]
