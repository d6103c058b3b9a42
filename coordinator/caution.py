"""When to stop and ask: what does away with this many blobs at once is more likely a mistake than the truth.

For the leader's runs, of all blobs, and for each node's passes, of its own.
"""

from typing import Final

CAUTION_SHARE: Final = 0.1
CAUTION_BLOBS: Final = 100  # fewer never are too many


def is_too_many(going: int, blobs: int) -> bool:
    """Whether so many of so many blobs are more than goes without a question."""
    return going > CAUTION_BLOBS and going > blobs * CAUTION_SHARE
