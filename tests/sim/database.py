"""A member's database on simulated hardware: SQLite in memory, and which of its states a power cut may leave.

SQLite in WAL mode with synchronous=NORMAL comes back from a power cut consistent, at some transaction
between the last checkpoint and the last commit. The model keeps the image of the checkpoint and of a few
later commits; one of them, or the newest state, is what is found. A killed process loses nothing that was
committed.
"""

import random
import sqlite3
import weakref

from coordinator.storage.state_store import Store
from tests.sim import genesis

LATER_IMAGES_MAX = 3
KEEP_SHARE = 0.05  # of commits whose image is kept


class Database:
    """One database file. It outlives the Store that works on it."""

    def __init__(self, image: bytes, rand: random.Random) -> None:
        self._rand = rand
        self._connect(image)
        self._images = [image]  # the first is the checkpoint
        self.durable_index = 0  # what a power cut leaves at the least

    def _connect(self, image: bytes) -> None:
        self.connection: sqlite3.Connection = genesis.connect(image)
        # A world is dropped as a whole, wherever it ended: what it had open is closed with it.
        self._close = weakref.finalize(self, self.connection.close)

    def open(self) -> Store:
        """The product's store on this database: a start makes durable what a killed process left."""
        self._settle(self.image())
        return Store.over(self.connection, self.connection)

    def committed(self) -> None:
        """A transaction was committed: its state may be what a power cut leaves."""
        if len(self._images) <= LATER_IMAGES_MAX and self._rand.random() < KEEP_SHARE:
            self._images.append(self.image())

    def checkpoint(self, store: Store) -> int:
        """Makes the state durable; the index up to which the log may now forget."""
        index = store.checkpoint()
        self._settle(self.image())
        return index

    def _settle(self, image: bytes) -> None:
        self._images = [image]
        row = self.connection.execute("SELECT log_index FROM applied").fetchone()
        self.durable_index = row[0] if row else 0

    def lose_power(self) -> None:
        """What the last checkpoint, or a commit after it, left."""
        self.replace(self._rand.choice((*self._images, self.image())))

    def replace(self, image: bytes) -> None:
        """The file is another one now, durable."""
        self._close()
        self._connect(image)
        self._settle(image)

    def install(self, image: bytes) -> None:
        """Another state takes the place of this one, durable, under a store that stays open."""
        source = genesis.connect(image)
        source.backup(self.connection)  # a connection with prepared statements does not survive a deserialize
        source.close()
        self._settle(image)

    def image(self) -> bytes:
        """The whole file as it is now."""
        return self.connection.serialize()

    def dump(self) -> list[str]:
        """Everything as SQL, to compare two members."""
        return list(self.connection.iterdump())
