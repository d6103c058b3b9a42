"""Contents for programs of random operations: a seed and a number decide their bytes, made anew each time."""

import math
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256


@dataclass(frozen=True)
class SeededContent(ABC):
    """Bytes that the seed and a number decide; how many is for whoever makes a kind of them."""

    seed: int
    number: int

    @abstractmethod
    def _size(self, dice: random.Random) -> float:
        """How many bytes, near enough."""

    @cached_property
    def size_bytes(self) -> int:
        """How many bytes."""
        return int(self._size(random.Random(f"{self.seed} size {self.number}")))

    @cached_property
    def sha256(self) -> str:
        """Of the bytes."""
        return sha256(self.bytes()).hexdigest()

    def bytes(self) -> bytes:
        """Made anew each time."""
        return random.Random(f"{self.seed} bytes {self.number}").randbytes(self.size_bytes)


def even_by_logarithm(dice: random.Random, low: int, high: int) -> float:
    """A number between the two; small ones are as likely as large ones."""
    return math.exp(dice.uniform(math.log(low), math.log(high)))
