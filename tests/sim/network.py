"""The simulated network: which messages get lost, come twice or late, and which links are cut."""

import random
from collections.abc import Iterable

from tests.sim.weather import Weather


class Network:
    """Links between machines, each in one direction."""

    def __init__(self, weather: Weather, rand: random.Random) -> None:
        self._rand = rand
        self.loss = weather.loss
        self.double = weather.double
        self.delay_max = weather.delay_max
        self.cut: set[tuple[str, str]] = set()
        self.lost = 0
        self.doubled = 0

    def delays(self) -> tuple[int, ...]:
        """When the copies of one message arrive; nothing when it is lost."""
        rand = self._rand
        if self.loss and rand.random() < self.loss:
            self.lost += 1
            return ()
        first = 1 + int(rand.random() * self.delay_max)
        if self.double and rand.random() < self.double:
            self.doubled += 1
            return (first, 1 + int(rand.random() * 3 * self.delay_max))
        return (first,)

    def is_cut(self, source: str, target: str) -> bool:
        """Whether nothing gets from one to the other now."""
        return (source, target) in self.cut

    def part(self, names: Iterable[str]) -> str:
        """Cuts links in one of the ways in which networks fail. What was done, in words."""
        everyone = sorted(names)
        rand = self._rand
        some = rand.sample(everyone, rand.randint(1, max(1, len(everyone) - 1)))
        others = [name for name in everyone if name not in some]
        kind = rand.choice(("both ways", "deaf", "mute", "one link", "a bridge"))
        self.cut.clear()
        if kind == "one link" and others:
            self.cut = {(some[0], others[0])}
        elif kind == "a bridge" and len(others) > 1:
            self.cut = _both({(one, other) for one in some for other in others[1:]})
        elif kind == "deaf":
            self.cut = {(other, one) for one in some for other in others}
        elif kind == "mute":
            self.cut = {(one, other) for one in some for other in others}
        else:
            self.cut = _both({(one, other) for one in some for other in others})
        return f"{kind}: {', '.join(some)} from {', '.join(others) or 'nobody'}"

    def heal(self) -> None:
        """All links work."""
        self.cut.clear()

    def calm(self) -> None:
        """From now on nothing is lost and all is fast."""
        self.heal()
        self.loss = self.double = 0.0
        self.delay_max = 2


def _both(links: set[tuple[str, str]]) -> set[tuple[str, str]]:
    return links | {(target, source) for source, target in links}
