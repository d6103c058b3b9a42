"""Ports that are given are not given again soon, though nobody listens there yet."""

import pytest

from deploy.processes import PORTS_VARIABLE, free_ports


def test_what_was_given_lately_is_not_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PORTS_VARIABLE, "32100-32199")
    given = [port for _ in range(10) for port in free_ports(4)]
    assert len(set(given)) == len(given)


def test_what_was_given_lately_is_given_again_where_there_is_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(PORTS_VARIABLE, "32200-32203")
    assert free_ports(4) == free_ports(4) == [32200, 32201, 32202, 32203]
