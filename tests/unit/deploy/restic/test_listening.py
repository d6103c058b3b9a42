"""Where `filestore serve restic` listens."""

import stat
from pathlib import Path

import pytest

from ca.errors import Conflict
from deploy.restic.listening import place_of


def test_socket_of_a_server_that_still_starts_is_not_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "restic.sock"
    first, _ = place_of(f"unix:{path}").bound()
    with first:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(Conflict):
            place_of(f"unix:{path}").bound()
    again, _ = place_of(f"unix:{path}").bound()  # what a dead server left behind is replaced
    again.close()
