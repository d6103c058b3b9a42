"""What a command says of how a member is run: by its unit where there is one, else by hand."""

from pathlib import Path

import pytest

from deploy.setup import running
from deploy.setup.plan import DATA
from deploy.setup.running import how_to_run


@pytest.mark.parametrize("role", ["node", "coordinator"])
def test_unit_is_named_where_it_runs_that_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    by_hand = f"filestore {role} run --data {DATA / role}"
    monkeypatch.setattr(running, "_SYSTEMD", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert how_to_run(role, DATA / role) == by_hand  # no systemctl
    systemctl = tmp_path / "systemctl"
    systemctl.write_text("#!/bin/sh\nexit 1\n")
    systemctl.chmod(0o755)
    assert how_to_run(role, DATA / role) == by_hand  # no units
    systemctl.write_text("#!/bin/sh\nexit 0\n")
    assert how_to_run(role, DATA / role) == f"systemctl enable --now filestore-{role}"
    assert how_to_run(role, tmp_path) == f"filestore {role} run --data {tmp_path}"
