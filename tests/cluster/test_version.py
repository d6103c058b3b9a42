"""Whoever says which version this is says the same: the command, /healthz, and the metrics of both roles."""

import re
import subprocess
import sys

from runtime.version import VERSION
from tests.cluster.harness import Cluster


def test_command_health_and_metrics_agree_on_the_version(cluster: Cluster) -> None:
    command = subprocess.run(
        [sys.executable, "-m", "deploy.entry", "--version"], capture_output=True, text=True, check=True
    )
    assert command.stdout.strip().endswith(f" {VERSION}")
    for member in (*cluster.nodes, *cluster.coordinators):
        for path in ("/healthz", "/readyz"):
            assert cluster.get(path, node=member, token="").json["version"] == VERSION
        told = cluster.get("/metrics", node=member, token="").body.decode()
        found = re.search(r"^filestore_info\{(.*)\} 1\.0$", told, re.MULTILINE)
        assert found is not None
        assert f'version="{VERSION}"' in found[1]
