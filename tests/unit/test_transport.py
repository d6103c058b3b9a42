"""Raft messages to coordinators that are not known where they are to go."""

import pytest

from ca.certificates import Authority
from ca.identity import Identity, Role
from coordinator import transport as transport_module
from coordinator.raft.messages import Message, MessageKind
from coordinator.transport import Transport
from tests.unit.peer_ports import CLUSTER, contexts_of
from tests.unit.state import coordinator


def test_stranger_that_stays_one_is_told_once(
    tmp_path_factory: pytest.TempPathFactory,
    peer_authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    contexts = contexts_of("c1", tmp_path_factory.mktemp("own"), peer_authority)
    transport = Transport(Identity(CLUSTER, Role.COORDINATOR, "c1"), [coordinator("c2")], contexts.client)
    answers = [Message(MessageKind.HEARTBEAT_REPLY, "c1", target, 1) for target in ("c2", "c9")]
    transport.send(answers)
    assert not caplog.records
    monkeypatch.setattr(transport_module, "STRANGER_S", 0.0)
    for _ in range(3):
        transport.send(answers)
    assert [each.args for each in caplog.records] == [("c9",)]
