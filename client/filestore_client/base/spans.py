# A copy of node/base/spans.py, written by `python -m release.client`.
"""Which bytes of a file exist: half-open, joined spans. Shared by downloads, salvage and quarantine.

Pure: integers in, spans out. The Python client has a copy of this module (`release/client.py`).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

Span = tuple[int, int]  # start and stop in bytes; stop is outside


class Coverage:
    """Spans that only grow."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self.size_bytes = 0
        for start, stop in spans:
            self.add(start, stop)

    @property
    def spans(self) -> list[Span]:
        """Return the spans, ascending; no two spans touch."""
        return list(zip(self._starts, self._stops, strict=True))

    @property
    def prefix_bytes(self) -> int:
        """Return how many bytes exist without a gap from the beginning."""
        return self._stops[0] if self._starts and self._starts[0] == 0 else 0

    def add(self, start: int, stop: int) -> None:
        """Add a span, which may overlap existing ones."""
        assert 0 <= start <= stop
        if start == stop:
            return
        first = bisect_left(self._stops, start)
        last = bisect_right(self._starts, stop)
        joined = range(first, last)
        start = min([start, *self._starts[first:last]])
        stop = max([stop, *self._stops[first:last]])
        self.size_bytes += stop - start - sum(self._stops[at] - self._starts[at] for at in joined)
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]

    def gaps(self, size_bytes: int) -> Iterator[Span]:
        """Yield the gaps in a file of this size, ascending."""
        at = 0
        for start, stop in self.spans:
            if at < min(start, size_bytes):
                yield at, min(start, size_bytes)
            at = stop
        if at < size_bytes:
            yield at, size_bytes
