"""Tests that speak to real processes run on the loop that the product runs on."""

from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], AbstractEventLoop]]:
    """The hook of pytest-asyncio."""
    return {"uvloop": uvloop.new_event_loop}
