"""A cluster that is switched off until all of its certificates have expired, and switched on again."""

import json
import os
from pathlib import Path

import pytest

from tests.cluster.clocks import library, set_clock
from tests.cluster.harness import run_filestore
from tests.cluster.test_development import development, environment

DAYS = 10  # of which a certificate lives for seven
CONTENT = os.urandom(3_000_000)


@pytest.mark.long
def test_cluster_that_was_off_for_longer_than_its_certificates_live_comes_back_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, content = tmp_path / "dev", tmp_path / "content"
    content.write_bytes(CONTENT)
    shim = library(tmp_path)
    set_clock(monkeypatch, shim, -DAYS * 24 * 3600)
    with development(data):
        first = json.loads((data / "cluster.json").read_text())
        stored = run_filestore(["put", str(content)], environment(first, tmp_path))
        assert stored.returncode == 0, stored.stderr
    set_clock(monkeypatch, shim, 0)
    with development(data):  # healthy, or it would have ended
        second = json.loads((data / "cluster.json").read_text())
        got = run_filestore(["get", stored.stdout.decode().strip(), "-o", "-"], environment(second, tmp_path))
        assert got.stdout == CONTENT
        more = run_filestore(["put", str(content)], environment(second, tmp_path))
        assert more.returncode == 0, more.stderr
