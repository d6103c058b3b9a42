"""Which certificates end soon: those whose renewal is overdue, and those of the authority a month before."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from coordinator.admin import setup
from coordinator.member.open_storage import Ledger, open_ledger
from coordinator.raft_metrics import timed_sync
from coordinator.statuses import AUTHORITY_WARNING_MS, LEAF_WARNING_MS, WEB_WARNING_MS, ending_soon
from coordinator.storage.config import CoordinatorFiles
from metadata.model.records import CoordinatorRecord
from metadata.rpc.member_metrics import expiries
from runtime.metrics import Metrics


@pytest.fixture
def files(tmp_path: Path) -> CoordinatorFiles:
    own = CoordinatorRecord(coordinator_id="c1", address="127.0.0.1", peer_port=7442, api_port=7441)
    made = CoordinatorFiles(tmp_path / "c1")
    setup.init_cluster(made.data, coordinator_id="c1", cluster="lab", members=[own], development=True)
    return made


def holders(
    ledger: Ledger, files: CoordinatorFiles, at_ms: int, web_ends_ms: Mapping[str, int] = MappingProxyType({})
) -> list[str]:
    found = ending_soon(ledger.store, files.credential(), "c1", at_ms=at_ms, web_ends_ms=web_ends_ms)
    return [each.holder for each in found]


def test_certificate_is_told_from_its_warning_on(files: CoordinatorFiles) -> None:
    ledger = open_ledger(files, timed_sync(Metrics("coordinator").registry))
    try:
        ends = expiries(files.credential())
        assert holders(ledger, files, ends.leaf_ms - LEAF_WARNING_MS) == []
        assert holders(ledger, files, ends.leaf_ms - LEAF_WARNING_MS + 1) == ["coordinator c1"]
        later_ms = ends.intermediate_ms - AUTHORITY_WARNING_MS + 1
        assert holders(ledger, files, later_ms) == ["coordinator c1", "intermediate"]
        last_ms = ends.root_ms - AUTHORITY_WARNING_MS + 1
        assert holders(ledger, files, last_ms) == ["coordinator c1", "intermediate", "root"]
    finally:
        ledger.close()


def test_certificate_for_browsers_is_told_from_its_warning_on(files: CoordinatorFiles) -> None:
    ledger = open_ledger(files, timed_sync(Metrics("coordinator").registry))
    try:
        at_ms = expiries(files.credential()).leaf_ms - LEAF_WARNING_MS
        ends = {"coordinator c1": at_ms + WEB_WARNING_MS - 1, "node n1": at_ms + WEB_WARNING_MS, "node n2": 0}
        assert holders(ledger, files, at_ms, ends) == ["coordinator c1 for browsers"]
    finally:
        ledger.close()


def test_credential_that_cannot_be_read_tells_nothing(files: CoordinatorFiles) -> None:
    ledger = open_ledger(files, timed_sync(Metrics("coordinator").registry))
    try:
        files.credential_path.write_text("nothing")
        assert holders(ledger, files, 2**52) == []
    finally:
        ledger.close()
