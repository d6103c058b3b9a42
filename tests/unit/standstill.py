"""Tests in real time, on machines that stand still for a while: what failed then is tried again."""

import functools
import threading
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, ParamSpec, Self

LOOK_S = 0.01
TRIES = 20
_P = ParamSpec("_P")
_Test = Callable[_P, Coroutine[Any, Any, None]]


class Standstill(threading.Thread):
    """The longest time in which this process got no turn. Use as a context manager."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.longest_s = 0.0
        self._over = threading.Event()

    def run(self) -> None:
        before_s = time.monotonic()
        is_over = False
        while not is_over:
            is_over = self._over.wait(LOOK_S)
            now_s = time.monotonic()
            self.longest_s = max(self.longest_s, now_s - before_s)
            before_s = now_s

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self.join()


def again_after_standstill(longest_s: float) -> Callable[[_Test[_P]], _Test[_P]]:
    """A test that failed counts only if the process had a turn at least every `longest_s` meanwhile."""

    def decorate(test: _Test[_P]) -> _Test[_P]:
        @functools.wraps(test)
        async def tried(*args: _P.args, **options: _P.kwargs) -> None:
            for left in reversed(range(TRIES)):
                watch = Standstill()
                try:
                    with watch:
                        await test(*args, **options)
                    return
                except Exception:
                    if not left or watch.longest_s < longest_s:
                        raise

        return tried

    return decorate
