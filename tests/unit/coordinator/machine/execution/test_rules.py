"""What commands mean changes for all coordinators at one place of the log, and for none before."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import msgspec
import pytest

from coordinator.raft.messages import Entry, EntryKind
from coordinator.storage.database import UnknownRules
from coordinator.storage.state_store import Store
from metadata.model import rules
from metadata.model.rules import FIRST, RULES
from metadata.protocol import commands
from metadata.protocol.commands import Envelope, encode_envelope
from tests.unit.state import ADMIN, State, bootstrap, create, dump, grant, public_token


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    """Of a cluster whose coordinators do not all know newer rules."""
    made = State(tmp_path / "state.sqlite", rules=FIRST)
    made.nodes("n1")
    yield made
    made.store.close()


def raise_to(version: int) -> commands.RaiseRules:
    return commands.RaiseRules(version=version)


def test_rules_are_never_lowered(state: State) -> None:
    assert state.store.rules() == FIRST
    for version, expected in ((RULES, RULES), (FIRST, RULES), (0, RULES)):
        assert state.apply(raise_to(version)) == expected
        assert state.store.rules() == expected


def test_rules_that_this_program_does_not_know_end_it_before_it_applies_them(state: State) -> None:
    before = dump(state.path)
    with pytest.raises(UnknownRules, match=f"rules {RULES + 1}"):
        state.apply_batch(create(ADMIN, "f1"), raise_to(RULES + 1))
    assert dump(state.path) == before


class FromThenOn(commands.Command, frozen=True, kw_only=True, tag="from_then_on"):
    """A command that newer programs alone know."""


def test_newer_rules_end_a_program_before_it_reads_what_it_does_not_know(state: State) -> None:
    before, unknown = dump(state.path), cast("commands.AnyCommand", FromThenOn())
    with pytest.raises(UnknownRules, match=f"rules {RULES + 1}"):
        state.apply_batch(create(ADMIN, "f1"), raise_to(RULES + 1), unknown)
    assert dump(state.path) == before


def test_state_by_newer_rules_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "newer.sqlite"
    with closing(Store(path)) as store:
        store._writer.execute("INSERT INTO rules (one, version) VALUES (1, ?)", (RULES + 1,))
    with pytest.raises(UnknownRules):
        Store(path)


def test_digests_by_different_rules_differ(state: State, tmp_path: Path) -> None:
    newer = State(tmp_path / "newer.sqlite", rules=RULES)
    with closing(newer.store):
        newer.nodes("n1")
        assert newer.apply(commands.HashState())["digest"] != state.apply(commands.HashState())["digest"]


def test_life_from_the_time_of_the_leader_waits_for_coordinators_that_know_it() -> None:
    """An older one would apply the command without it: a permission without end."""
    for command in (grant(ADMIN, "file:f1", "user:bob"), public_token(ADMIN, "f1", "t1")):
        assert command.rules_needed == FIRST
        assert msgspec.structs.replace(command, ttl_seconds=1).rules_needed == rules.ENDS_ARE_COUNTED


def test_log_from_before_the_first_release_is_refused(tmp_path: Path) -> None:
    """As its first entry says, and although it was raised to newer rules in the same batch."""
    path = tmp_path / "older.sqlite"
    with closing(Store(path)) as store:
        raised = cast("commands.AnyCommand", raise_to(RULES))
        changes = [bootstrap(rules=FIRST - 1), raised]
        entries = [
            Entry(index, 1, EntryKind.COMMAND, encode_envelope(Envelope(0, 0, 0, 1, change)))
            for index, change in enumerate(changes, 1)
        ]
        with pytest.raises(UnknownRules, match=r"before release 0\.1\.0"):
            store.apply(entries)
        assert store.applied_index() == 0


@pytest.mark.parametrize("older", ["DELETE FROM rules", f"UPDATE rules SET version = {FIRST - 1}"])
def test_state_from_before_the_first_release_is_not_opened(tmp_path: Path, older: str) -> None:
    """Also where it lacks columns that the schema has indexes of, which is told as no damage."""
    state = State(tmp_path / "state.sqlite")
    state.store._writer.execute(older)
    state.store._writer.execute("DROP INDEX blobs_by_bucket")
    state.store._writer.execute("ALTER TABLE blobs DROP COLUMN released_by")
    state.store.close()
    with pytest.raises(UnknownRules, match=r"before release 0\.1\.0"):
        Store(state.path)
