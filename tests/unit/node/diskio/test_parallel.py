"""Two parts of one piece of work: side by side where a thread is free, one after the other where none is."""

import threading
from collections.abc import Iterator

import pytest

from node.diskio.parallel import ParallelParts


@pytest.fixture
def parallel(monkeypatch: pytest.MonkeyPatch) -> Iterator[ParallelParts]:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    made = ParallelParts()
    yield made
    made.close()


def test_parts_run_at_the_same_time(parallel: ParallelParts) -> None:
    met = threading.Barrier(2, timeout=30)
    parallel.run(met.wait, met.wait)
    assert not met.broken


def test_part_runs_in_the_callers_thread_where_none_is_free(parallel: ParallelParts) -> None:
    ran: list[threading.Thread] = []

    def run_both() -> None:
        parallel.run(lambda: None, lambda: ran.append(threading.current_thread()))

    begun, go_on = threading.Event(), threading.Event()

    def occupy() -> None:
        begun.set()
        assert go_on.wait(30)

    def meanwhile() -> None:
        assert begun.wait(30)
        run_both()
        go_on.set()

    parallel.run(meanwhile, occupy)
    assert ran == [threading.current_thread()]
    run_both()  # the thread is free again
    assert ran[1] != threading.current_thread()


def test_failure_is_told_when_both_have_ended(parallel: ParallelParts) -> None:
    ended: list[str] = []

    def fail(error: Exception) -> None:
        raise error

    for _ in range(2):  # a failure leaves the thread free
        with pytest.raises(OSError, match="here"):
            parallel.run(lambda: fail(OSError("here")), lambda: ended.append("beside"))
        with pytest.raises(ValueError, match="beside"):
            parallel.run(lambda: ended.append("here"), lambda: fail(ValueError("beside")))
    assert ended == ["beside", "here"] * 2
