"""Admin tokens that are signed on the machine of a coordinator, while the clocks of the cluster are wrong."""

import base64
import json
from pathlib import Path

import pytest

from coordinator.admin import setup
from coordinator.storage.config import CoordinatorFiles
from metadata.model.records import CoordinatorRecord
from runtime.clock import now_ms
from runtime.json_files import encode_sealed
from runtime.kept_time import SavedTime


def test_admin_token_is_dated_by_the_time_that_is_kept_while_clocks_are_behind_it(
    tmp_path: Path,
) -> None:
    files, begins_ms = CoordinatorFiles(tmp_path / "c1"), now_ms()
    own = CoordinatorRecord(coordinator_id="c1", address="127.0.0.1", peer_port=7451, api_port=7441)
    setup.init_cluster(files.data, coordinator_id="c1", cluster="lab", members=[own], development=True)
    for ahead_ms, issued_ms in ((3 * 86_400_000, 3 * 86_400_000), (-3 * 86_400_000, 0)):
        saved = SavedTime(10.0, begins_ms, begins_ms + ahead_ms - 10_000.0, 0.0)
        files.time.write_bytes(encode_sealed(saved, of="c1"))
        payload = setup.mint_admin_token(files.data).split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=="))
        assert claims["iat"] * 1000 == pytest.approx(begins_ms + issued_ms, abs=60_000)
