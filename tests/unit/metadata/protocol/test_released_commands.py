"""What the release before this one cannot read is not proposed while a member may still run it.

Its coordinators would end at an unknown command, and apply a known one without a field that they do not know.
"""

import io
import json
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

from coordinator.member.proposing import check_known
from metadata.model.rules import FIRST, RULES, NotInForce
from metadata.protocol.commands import DeleteProvider, ProtectFile, RevokeInvitation
from metadata.protocol.commands.root import Command, leaves
from tests.cluster.previous_release import ROOT, previous_commit
from tests.unit.state import ADMIN

DUMP = """
import json, sys
sys.path[:0] = {places}
from {package}.protocol import commands
found, kinds = dict(), [commands.root.Command]
for kind in kinds:
    kinds += kind.__subclasses__()
    if not kind.__subclasses__():
        found[kind.__struct_config__.tag] = kind.__struct_fields__
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The fields of each command of the release before, by tag. Skips without git or its history."""
    directory = tmp_path_factory.mktemp("released")
    archive = ["git", "archive", previous_commit(), "*.py"]
    made = subprocess.run(archive, cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(made)) as tree:
        tree.extractall(directory, filter="data")
    return fields_in(directory)


def fields_in(directory: Path) -> dict[str, list[str]]:
    """Without the site module, which would find the packages of this version."""
    places = [str(directory), sysconfig.get_paths()["platlib"]]
    (root,) = directory.glob("*/protocol/commands/root.py")  # of `coordinator` in release 0.1.0
    script = DUMP.format(places=places, package=root.relative_to(directory).parts[0])
    command = [sys.executable, "-S", "-c", script]
    shown = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = json.loads(shown.stdout)
    return found


def test_each_newer_command_and_field_waits_for_the_rules_that_every_member_knows(
    released: dict[str, list[str]],
) -> None:
    assert "put_provider" not in released, "these are the commands of this version"
    assert len(released) > 50, "these are not all commands"
    early = []
    for kind in leaves(Command):
        if not kind.__module__.startswith("metadata."):
            continue  # of another test
        known = released.get(str(kind.__struct_config__.tag))
        if known is None:
            early += [kind.__name__] if kind.since <= FIRST else []
            continue
        newer = [name for name in kind.__struct_fields__ if name not in known]
        early += [
            f"{kind.__name__}.{name}"
            for name in newer
            if max(kind.since, kind.fields_since.get(name, 0)) <= FIRST
        ]
    assert not early, "set `since`, or `fields_since`: older members pass it over, or end"


@pytest.mark.parametrize(
    "command",
    [
        DeleteProvider(caller=ADMIN, name="uni"),
        RevokeInvitation(caller=ADMIN, user_id="alice"),
        ProtectFile(caller=ADMIN, file_uuid="f1", ttl_seconds=60),
    ],
)
def test_leader_refuses_what_is_new_until_all_members_are_upgraded(command: Command) -> None:
    with pytest.raises(NotInForce, match="Upgrade members that run an older version"):
        check_known(command, FIRST)
    check_known(command, RULES)
