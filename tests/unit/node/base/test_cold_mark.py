"""A directory that may have cold replicas says so in a way that release 0.1.0 refuses."""

from pathlib import Path

import msgspec
import pytest
from msgspec import Struct

from metadata.model.records import CoordinatorRecord
from node.base.config import NodeConfig, NodeFiles
from runtime.json_files import decode_foreign

COORDINATORS = [CoordinatorRecord(coordinator_id="c1", address="127.0.0.1", peer_port=1, api_port=2)]
CONFIG = NodeConfig(
    id="n1", cluster="lab", address="127.0.0.1", api_port=1, peer_port=2, coordinators=COORDINATORS
)


class ReleasedConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """node.json as release 0.1.0 knows it."""

    id: str
    cluster: str
    address: str
    api_port: int
    peer_port: int
    coordinators: list[CoordinatorRecord]
    zone: str = ""
    weight: int = 100


def test_mark_is_there_as_long_as_there_may_be_cold_replicas(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    files.write_config(CONFIG)
    before = files.config.read_bytes()
    assert decode_foreign(before, ReleasedConfig).id == "n1"
    files.mark_cold(True)
    with pytest.raises(msgspec.ValidationError, match="thaw_before_downgrade"):
        decode_foreign(files.config.read_bytes(), ReleasedConfig)
    assert files.read_config().thaw_before_downgrade is True
    files.mark_cold(True)
    files.mark_cold(False)
    assert files.config.read_bytes() == before
