"""What a server process sets for its whole life."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from runtime.lifetime import COLLECT_AFTER, quieten_collector


@pytest.fixture
def quiet() -> Iterator[None]:
    threshold = gc.get_threshold()
    quieten_collector()
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()


class Cycle:
    def __init__(self) -> None:
        self.me = self


def test_collector_leaves_alone_what_is_there_at_start(quiet: None) -> None:
    assert gc.get_freeze_count() > 0


def test_collector_does_not_look_for_every_few_requests_but_still_looks(quiet: None) -> None:
    garbage = weakref.ref(Cycle())
    kept: list[list[int]] = [[] for _ in range(COLLECT_AFTER // 2)]
    assert garbage() is not None
    kept += [[] for _ in range(COLLECT_AFTER)]
    assert garbage() is None
