"""The content that a restore to a snapshot of the metadata has to find. For searches. No I/O here."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass
class Promises:
    """`promised`: the sha256 by file, without what was deleted for good."""

    promised: dict[str, str]

    def purge(self, gone: Mapping[str, str], left: Collection[str]) -> None:
        """Forget what was deleted for good: these files, and each content of theirs that no file has now.

        `gone`: the sha256 by file. `left`: content that some file has, in its bucket or in the trash.
        """
        lost = {*gone.values()}.difference(left)
        self.promised = {
            name: sha256 for name, sha256 in self.promised.items() if name not in gone and sha256 not in lost
        }
