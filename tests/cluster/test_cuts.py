"""An upload that is cut at random places, on changing nodes, with the node that holds it killed.

    CUTS_MIB=2048 CUTS=50 CUTS_KILLS=2 pytest -m long tests/cluster/test_cuts.py -s --timeout 1800

is the long form. `CUTS_SEED` repeats a run as far as the timing of processes lets it be repeated.
"""

import hashlib
import http.client
import json
import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from deploy.dev_cluster import Member
from tests.cluster.harness import Answer, Cluster, random_file
from tests.cluster.throttle import ThrottlingProxy
from tests.cluster.upload_steps import TUS

pytestmark = pytest.mark.long  # run by `make long`

MIB = 1 << 20
SIZE_BYTES = int(os.environ.get("CUTS_MIB", "64")) * MIB
CUTS = int(os.environ.get("CUTS", "8"))
KILLS = int(os.environ.get("CUTS_KILLS", "1"))
SEED = int(os.environ.get("CUTS_SEED", "1"))
BYTES_PER_S = 60 * MIB
PIECE_BYTES = 64 << 10
# What a cut may cost: what lay in buffers between client and disk. A kill: what was not reported yet.
CUT_BYTES_MAX = 2 * MIB
KILL_BYTES_MAX = 48 * MIB


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", node_count=4) as started:
        yield started


class CutUpload:
    """The upload of a file, through a proxy before each node."""

    def __init__(self, cluster: Cluster, path: Path, ways: dict[str, ThrottlingProxy]) -> None:
        self.cluster, self.path, self.ways = cluster, path, ways
        created = cluster.create(size_bytes=SIZE_BYTES)
        self.file_uuid = str(created["file_uuid"])
        self.first = next(node for node in cluster.nodes if created["upload_url"].startswith(node.url))
        self.target = f"/api/v1/files/{self.file_uuid}/content"
        self.dice = random.Random(SEED)
        self.dead: Member | None = None

    def any_node(self) -> Member:
        return self.dice.choice([node for node in self.cluster.nodes if node != self.dead])

    def holder(self) -> Member:
        """Of the last takeover that a node has told of."""
        taken = []
        for text in self.cluster.logs().values():
            for line in text.splitlines():
                if '"took over an upload"' in line and self.file_uuid in line:
                    told = json.loads(line)
                    taken.append((told["time"], told["peer"]))
        name = max(taken)[1] if taken else self.first.id
        return next(node for node in self.cluster.nodes if node.id == name)

    def offset(self) -> int:
        while True:  # bounded by the test's own deadline
            answer = self.cluster.request("HEAD", self.target, node=self.any_node(), headers=TUS)
            if answer.status == 200:
                return int(answer.headers["upload-offset"])
            assert answer.status in (423, 503)

    def send(self, start: int, stop: int, victim: Member | None = None) -> Answer | None:
        """A PATCH of all the rest, of which bytes up to `stop` are sent; its answer, None when it broke.

        What breaks it is the death of `victim`, if there is one.
        """
        way = self.ways[self.any_node().id]
        connection = http.client.HTTPSConnection(
            "127.0.0.1", urlsplit(way.url).port, timeout=60, context=self.cluster.context
        )
        try:
            connection.putrequest("PATCH", self.target)
            headers = TUS | {"Upload-Offset": str(start), "Content-Length": str(SIZE_BYTES - start)}
            for name, value in (headers | {"Authorization": f"Bearer {self.cluster.admin_token}"}).items():
                connection.putheader(name, value)
            connection.endheaders()
            with self.path.open("rb") as file:
                file.seek(start)
                for position in range(start, stop, PIECE_BYTES):
                    connection.send(file.read(min(PIECE_BYTES, stop - position)))
            if stop < SIZE_BYTES:
                return None
            response = connection.getresponse()
            return Answer(response.status, {}, response.read())
        except (OSError, http.client.HTTPException):
            return None
        finally:
            if victim is not None:
                self.dead = victim
                self.cluster.kill(victim)
            elif stop < SIZE_BYTES:
                way.cut()
            connection.close()

    def run(self) -> None:
        cuts = sorted(self.dice.sample(range(1, SIZE_BYTES), CUTS))
        kills = set(self.dice.sample(range(0, CUTS - 1, 2), KILLS))  # one node is dead at a time
        for number, cut in enumerate(cuts):
            victim = self.holder() if number in kills else None
            start = self.offset()
            if start < cut or victim is not None:
                self.send(start, max(start, cut), victim)
            if self.dead is not None and victim is None:  # one request has passed since it died
                self.cluster.restart(self.dead)
                self.cluster.wait_healthy()
                self.dead = None
        while True:  # bounded by the test's own deadline
            if (offset := self.offset()) == SIZE_BYTES:  # the answer was lost
                return
            answer = self.send(offset, SIZE_BYTES)
            if answer is not None and answer.status == 204:
                return


def test_upload_that_is_cut_and_loses_its_node_is_identical_at_the_end(four: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "content"
    sha256 = random_file(path, SIZE_BYTES)
    with ExitStack() as stack:
        ways = {
            node.id: stack.enter_context(ThrottlingProxy(node.api_port, bytes_per_s=BYTES_PER_S))
            for node in four.nodes
        }
        upload = CutUpload(four, path, ways)
        upload.run()
        sent_bytes = sum(way.passed_bytes for way in ways.values())
    record = four.get(f"/project-files/{upload.file_uuid}").json
    assert (record["status"], record["blob_sha256"]) == ("available", sha256)
    again_bytes = sent_bytes - SIZE_BYTES
    share = again_bytes / SIZE_BYTES
    print(
        f"\n{again_bytes / MIB:.1f} MiB were sent again, {share:.2%}; {CUTS} cuts, {KILLS} kills, seed {SEED}"
    )
    assert again_bytes <= max(0.05 * SIZE_BYTES, CUTS * CUT_BYTES_MAX + KILLS * KILL_BYTES_MAX)
    for node in four.nodes:
        replica = four.replica(node, sha256)
        if replica.exists():
            with replica.open("rb") as file:
                assert hashlib.file_digest(file, "sha256").hexdigest() == sha256
