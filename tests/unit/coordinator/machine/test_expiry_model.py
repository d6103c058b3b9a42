"""Expiry against a model: what ends is what the rules say, in whatever order things were made."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.machine.expiry import PUBLIC_TOKEN_RETENTION_MS, PUT_OFF_MS
from metadata.protocol import commands
from tests.unit.coordinator.machine.test_expiry import (
    DAY_MS,
    backup,
    grant,
    public_token,
    rows,
    statuses,
    with_nodes,
)
from tests.unit.state import ADMIN, HOUR_MS, Refusal, State, complete, create


@dataclass
class _File:
    """A file in the model. `ends_at_ms`: when its next step is due; None never."""

    sequence: int
    status: str
    ends_at_ms: int | None
    retention_hours: int | None
    parent: str = ""


class _Model:
    """What the rules say, without bounds or indexes; the commands that are not about time are the real
    ones.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.files: dict[str, _File] = {}
        self.permissions: dict[str, tuple[str, int]] = {}  # id to file and end
        self.tokens: dict[str, tuple[str, int]] = {}
        self.made = 0

    def name(self) -> str:
        self.made += 1
        return f"x{self.made}"

    def pick(self, number: int) -> str:
        names = sorted(self.files)
        return names[number % len(names)] if names else "none"

    def accepted(self, command: commands.AnyCommand) -> bool:
        return not isinstance(self.state.apply(command), Refusal)

    def make(self, number: int) -> None:
        hours = (None, 0, 1, 30)[number % 4]
        name = self.name()
        assert self.accepted(create(ADMIN, name, retention_hours=hours))
        self._made(name, hours)

    def make_backup(self, number: int) -> None:
        hours, name = (None, 0, 1, 30)[number % 4], self.name()
        parent = self.pick(number) if number % 3 else ""
        if self.accepted(backup(name, parent, retention_hours=hours)):
            self._made(name, hours, parent)

    def _made(self, name: str, hours: int | None, parent: str = "") -> None:
        at_ms = self.state.at_ms + DAY_MS
        self.files[name] = _File(self.state.log_index, "pending", at_ms, hours, parent)

    def finish(self, number: int) -> None:
        name = self.pick(number)
        if self.accepted(complete(ADMIN, name, f"sha {number % 2}", ["n1", "n2"])):
            file = self.files[name]
            if file.status == "pending":
                hours = file.retention_hours
                file.status = "available"
                file.ends_at_ms = None if hours is None else self.state.at_ms + hours * HOUR_MS

    def delete(self, number: int) -> None:
        name = self.pick(number)
        if self.accepted(commands.DeleteFile(caller=ADMIN, file_uuid=name, kind="")):
            self._remove(name)

    def grant(self, number: int) -> None:
        name, target, ends = self.name(), self.pick(number), self.state.at_ms + 1 + number * HOUR_MS
        if self.accepted(grant(target, name, ends)):
            self.permissions[name] = (target, ends)

    def share(self, number: int) -> None:
        name, target, ends = self.name(), self.pick(number), self.state.at_ms + 1 + number * HOUR_MS
        if self.accepted(public_token(target, name, ends)):
            self.tokens[name] = (target, ends)

    def wait(self, number: int) -> None:
        self.state.at_ms += (1, HOUR_MS, DAY_MS, 31 * DAY_MS)[number % 4]

    def expire(self, number: int) -> None:
        at_ms, rows_max = self.state.at_ms, (1, 3, 1000)[number % 3]
        assert self.state.store.is_expire_due(at_ms=at_ms) == self.is_due()
        for _ in range(500):
            if not self.state.apply(commands.Expire(rows_max=rows_max))["more"]:
                break
        else:
            raise AssertionError("the loop has no end")
        self._expire(at_ms)
        assert not self.state.store.is_expire_due(at_ms=at_ms)

    def is_due(self) -> bool:
        at_ms = self.state.at_ms
        return (
            any(self._due("pending", "available", "tombstoned"))
            or any(ends <= at_ms for _, ends in self.permissions.values())
            or any(ends + PUBLIC_TOKEN_RETENTION_MS <= at_ms for _, ends in self.tokens.values())
        )

    def _due(self, *states: str) -> list[tuple[int, int, str]]:
        return sorted(
            (file.ends_at_ms, -file.sequence, name)
            for name, file in self.files.items()
            if file.status in states and file.ends_at_ms is not None and file.ends_at_ms <= self.state.at_ms
        )

    def _expire(self, at_ms: int) -> None:
        for states in (("pending",), ("available", "tombstoned")):
            while due := self._due(*states):
                # Uploads that end at once are taken by name, files the newest first.
                name = min(due, key=lambda each: (each[0], each[2]))[2] if "pending" in states else due[0][2]
                self._step(name, at_ms)
        self.permissions = {name: each for name, each in self.permissions.items() if each[1] > at_ms}
        kept_ms = at_ms - PUBLIC_TOKEN_RETENTION_MS
        self.tokens = {name: each for name, each in self.tokens.items() if each[1] > kept_ms}

    def _step(self, name: str, at_ms: int) -> None:
        file = self.files[name]
        children = [child for child in self.files.values() if child.parent == name]
        if file.status == "available":
            children = [child for child in children if child.status != "tombstoned"]
        if children:
            file.ends_at_ms = at_ms + PUT_OFF_MS
        elif file.status == "available":
            file.status, file.ends_at_ms = "tombstoned", at_ms + DAY_MS
        else:
            self._remove(name)

    def _remove(self, name: str) -> None:
        del self.files[name]
        self.permissions = {i: each for i, each in self.permissions.items() if each[0] != name}
        self.tokens = {i: each for i, each in self.tokens.items() if each[0] != name}

    def compare(self) -> None:
        assert statuses(self.state) == {name: file.status for name, file in self.files.items()}
        assert {i for (i,) in rows(self.state, "SELECT permission_id FROM file_permissions")} == set(
            self.permissions
        )
        assert {i for (i,) in rows(self.state, "SELECT token_id FROM public_tokens")} == set(self.tokens)
        assert rows(self.state, "PRAGMA foreign_key_check") == []
        finished = [file for file in self.files.values() if file.status in ("available", "tombstoned")]
        assert rows(self.state, "SELECT file_count, used_bytes FROM buckets") == [
            (len(self.files), 5 * len(finished))
        ]
        references = rows(self.state, "SELECT COALESCE(SUM(reference_count), 0) FROM blobs")
        assert references == [(len(finished),)]


ACTIONS = ("make", "make_backup", "finish", "delete", "grant", "share", "wait", "expire")


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 40)), max_size=40))
def test_what_ends_is_what_the_rules_say_however_little_each_command_does(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]]
) -> None:
    state = State(tmp_path_factory.mktemp("expiry") / "state.sqlite")
    try:
        with_nodes(state)
        model = _Model(state)
        for action, number in [*actions, ("expire", 2), ("wait", 3), ("expire", 0)]:
            getattr(model, action)(number)
            model.compare()
    finally:
        state.store.close()
