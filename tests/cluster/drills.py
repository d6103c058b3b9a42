"""How long a drill of docs/ takes, from the first command to a cluster that is well again."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def drill(name: str) -> Iterator[None]:
    """Print the time of the block, as the drill of that name in the runbook."""
    began_s = time.monotonic()
    yield
    print(f"drill: {name}: {time.monotonic() - began_s:.1f} s", flush=True)
