"""Uploads in a storm: nodes that hold them die, freeze and wake while clients write, race and give up.

    STORM_S=600 STORM_SEED=7 pytest tests/cluster/test_upload_storm.py -s --timeout 1800

is the long form. The seed repeats a run as far as the timing of processes lets it be repeated.
"""

import hashlib
import os
import random
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from tests.blobs_on_disk import content_on
from tests.cluster.harness import Cluster
from tests.cluster.storm_clients import Client
from tests.cluster.storm_contents import BLOCK_BYTES, Upload, content
from tests.cluster.upload_storm import DEAD_S, FROZEN_S, WAYS, Storm, blobs_lacking

STORM_S = float(os.environ.get("STORM_S", "25"))
SEED = int(os.environ.get("STORM_SEED", "1"))
CLIENTS = int(os.environ.get("STORM_CLIENTS", "5"))
FINISH_S = 60.0  # for what is unfinished, once everybody is back
HEALED_S = 90.0
LONG_S = 60.0  # a shorter one does not wait until the nodes have swept, which is once a minute
SWEPT_S = 100.0

pytestmark = [pytest.mark.long, pytest.mark.timeout(STORM_S + 300)]


def test_what_was_acknowledged_in_a_storm_is_there_after_it(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", node_count=4) as cluster:
        storm = Storm(cluster, SEED)
        threads = [threading.Thread(target=Client(storm, number).run) for number in range(CLIENTS)]
        threads += [threading.Thread(target=work, args=(storm,)) for work in (watch, befall)]
        threads.append(threading.Thread(target=storm.writer.run))
        for thread in threads:
            thread.start()
        storm.rage(STORM_S)
        while any(thread.is_alive() for thread in threads):
            storm.mend()
            time.sleep(0.05)
        for thread in threads:
            thread.join()
        storm.calm()
        finish(storm)
        for upload in storm.uploads:
            read(storm, upload)
        heal(storm)
        taken = sum(text.count('"took over an upload"') for text in cluster.logs().values())
        print(f"{len(storm.uploads)} uploads, {taken} takeovers; {dict(sorted(storm.counts.items()))}")
        assert not storm.faults, "\n".join(storm.faults)
        assert taken, "no upload was taken over"


def test_verdict_knows_what_was_acknowledged_and_what_nobody_sent() -> None:
    size = 3 * BLOCK_BYTES
    upload = Upload("", "name", size, False, Member("n", "node", 1, 1), False, variants=2)
    mixed = content("name", 1, 0, 5000) + content("name", 2, 5000, size)
    assert not upload.explained(mixed)
    assert upload.explained(mixed[:-1])
    assert upload.explained(mixed[:6000] + bytes(1) + mixed[6001:])
    upload.sure = [(0, 5000, 1), (5000, size, 2)]
    assert not upload.explained(mixed)
    upload.sure = [(0, 5001, 1)]
    assert upload.explained(mixed)
    upload.whole_stored = 2
    assert upload.explained(mixed)
    assert not upload.explained(content("name", 2, 0, size))


def watch(storm: Storm) -> None:
    """Somebody who asks again and again where uploads stand."""
    watcher = Client(storm, -1)
    while not storm.is_over.is_set():
        ongoing = [each for each in storm.uploads[-12:] if not each.is_complete and not each.is_deleted]
        if ongoing:
            upload = watcher.dice.choice(ongoing)
            if not upload.is_loose and not upload.may_be_deleted:
                watcher.stands_at(upload, watcher.dice.choice(["GET", "HEAD"]))
        time.sleep(0.05)


def befall(storm: Storm) -> None:
    """What befalls nodes and coordinators at random, beside what clients aim at."""
    dice = random.Random(f"{storm.seed}/befall")
    while not storm.is_over.wait(dice.uniform(0.3, 4)):
        how = dice.choice(WAYS)
        lasts_s = dice.uniform(*(DEAD_S if how == "kill" else FROZEN_S))
        ongoing = [each for each in storm.uploads[-12:] if not each.is_complete and not each.is_deleted]
        if ongoing and dice.random() < 0.5:
            storm.strike(storm.holder(dice.choice(ongoing)), how, lasts_s, at_once_max=2)
        else:
            members = storm.cluster.nodes if dice.random() < 0.7 else storm.cluster.coordinators
            storm.strike(dice.choice(members), how, lasts_s)
        if dice.random() < 0.2:
            node, now = dice.choice(storm.cluster.nodes), b'{"grace_s": 0, "yes_really": true}'
            storm.ask("POST", "/api/v1/jobs/gc", node, now, Content_Type="application/json")


def finish(storm: Storm) -> None:
    """Every upload that has not ended can be gone on with, or given up."""
    client = Client(storm, -2)
    until_s = time.monotonic() + FINISH_S
    left = [upload for upload in storm.uploads if not upload.is_complete and not upload.is_deleted]
    print(f"{len(left)} of {len(storm.uploads)} uploads to be ended")
    while left and time.monotonic() < until_s:
        for upload in left:
            upload.is_writers = False  # an admin may
            offset = client.stands_at(upload)
            if offset is None or upload.is_complete:
                continue
            if offset < upload.size and client.dice.random() < 0.3:
                answer = storm.ask("DELETE", upload.path, client.node(upload))
                upload.is_deleted = answer is not None and answer.status in (204, 404)
            else:
                client.patch(upload, offset, upload.size - offset, share=0.0)
        left = [upload for upload in left if not upload.is_complete and not upload.is_deleted]
    for upload in left:
        storm.fault(f"{upload.file_uuid}: cannot be ended")


def read(storm: Storm, upload: Upload) -> None:
    """What is complete reads the same at every node, and as it was sent; what was deleted is gone."""
    bodies = set()
    for node in storm.cluster.nodes:
        answer = storm.ask("GET", f"/api/v1/files/{upload.file_uuid}", node, timeout_s=60)
        assert answer is not None, f"{node.id} does not answer"
        if upload.is_deleted or (upload.may_be_deleted and answer.status == 404):
            if answer.status not in (404, 409):
                storm.fault(f"{upload.file_uuid}: deleted, and {node.id} answers {answer.status}")
            continue
        if answer.status != 200:
            storm.fault(f"{upload.file_uuid}: complete, and {node.id} answers {answer.status}")
            continue
        bodies.add(answer.body)
    if len(bodies) > 1:
        storm.fault(f"{upload.file_uuid}: nodes have different contents")
    for body in bodies:
        if reason := upload.explained(body):
            storm.fault(f"{upload.file_uuid}: {reason}")


def heal(storm: Storm) -> None:
    """Every blob gets its replicas, and no bytes of ended uploads stay."""
    cluster = storm.cluster
    state = cluster.data(cluster.coordinators[0]) / "state.sqlite"

    def lying() -> list[str]:
        return [path.name for node in cluster.nodes for path in (cluster.data(node) / "uploads").iterdir()]

    wait_until(lambda: blobs_lacking(cluster) == 0, what="every replica", timeout_s=HEALED_S)
    held = replicas(state)
    assert held, "nothing was stored"
    for node_id, sha256 in held:
        node = next(node for node in cluster.nodes if node.id == node_id)
        content = content_on(cluster.data(node), sha256)
        if content is None or hashlib.sha256(content).hexdigest() != sha256:
            storm.fault(f"{node_id} does not hold {sha256}, and the log says so")
    if STORM_S >= LONG_S:
        wait_until(lambda: not lying(), what="no bytes of ended uploads", timeout_s=SWEPT_S)


def replicas(state: Path) -> list[tuple[str, str]]:
    """Who holds what, by the log."""
    with sqlite3.connect(f"file:{state}?mode=ro", uri=True) as db:
        return db.execute("SELECT node_id, sha256 FROM blob_replicas WHERE doomed_at IS NULL").fetchall()
