"""What the log comes to know of a blob while a node decides about it."""

from typing import Any

import pytest

from metadata.protocol.queries import KnownReplicas
from tests.unit import replica_acts as acts
from tests.unit.custody_node import Keeper


async def test_unknown_blob_that_the_log_comes_to_know_meanwhile_stays(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, read = keeper.put(keeper.content()), keeper.log.read
    keeper.age(name)

    async def known_later(query: Any, reply_type: Any, **options: Any) -> Any:
        answer = await read(query, reply_type, **options)
        if isinstance(query, KnownReplicas) and not keeper.held():
            acts.put(keeper.state, "file", name, "n1", "n2", as_of=keeper.state.log_index)
        return answer

    monkeypatch.setattr(keeper.log, "read", known_later)
    assert (await keeper.compare())["unknown"] == 1
    assert (keeper.on_disk(), keeper.quarantined(), keeper.held()) == ([name], [], [name])


async def test_completion_that_saw_an_unknown_blob_before_its_quarantine_is_refused(keeper: Keeper) -> None:
    name, seen_at = keeper.put(keeper.content()), keeper.state.log_index
    keeper.age(name)
    assert (await keeper.compare())["quarantined"] == 1
    assert acts.put(keeper.state, "file", name, "n1", "n2", as_of=seen_at) == "unavailable"
