"""The general search for a linear order of the operations on one register, for values that repeat.

Wing and Gong's search ("Testing and verifying concurrent objects", 1993) in Lowe's just-in-time form
("Testing for linearizability", 2017): the events are walked in the order of time, and an operation is given
its place in the order no sooner than when it returns. What is remembered at any time is the set of
configurations: the value now, and which of the operations under way have their place already.
"""

from collections.abc import Iterable, Sequence

from tests.history_records import SHOWN_MAX, Operation, Value, Violation

CONFIGURATIONS_MAX = 50_000  # at one event: about a second of work

_Configuration = tuple[Value, frozenset[int]]


class Undecided(Exception):
    """Too many orders are possible: use unique values, or fewer writers of one key."""


def search(key: str, operations: Sequence[Operation], initial: Value) -> Violation | None:
    """The violation, or None if the operations on this key are linearizable. Raises Undecided."""
    relevant = _relevant(operations)
    under_way: set[int] = set()
    configurations: set[_Configuration] = {(initial, frozenset())}
    for _, is_return, number in _events(relevant):
        if not is_return:
            under_way.add(number)
            continue
        reached = _with_place(relevant, under_way, configurations, number)
        under_way.discard(number)
        if not reached:
            return _no_order(key, relevant, number)
        configurations = _undominated(reached, relevant)
    return None


def _relevant(operations: Sequence[Operation]) -> list[Operation]:
    """Without what says nothing: failed writes, unanswered reads, unknown writes that nobody ever saw.

    The last need never take effect, and no order that has one of them gets wrong without it.
    """
    found = {o.value for o in operations if o.kind == "read" and o.outcome == "ok"}
    return [
        o
        for o in operations
        if o.outcome == "ok" or (o.kind == "write" and o.outcome == "unknown" and o.value in found)
    ]


def _events(operations: Sequence[Operation]) -> Iterable[tuple[float, bool, int]]:
    """(time, whether it is a return, operation) in order; at equal times calls come first: concurrent."""
    events = [(o.called_at, False, number) for number, o in enumerate(operations)]
    events += [(o.ends_at, True, number) for number, o in enumerate(operations) if o.outcome == "ok"]
    return sorted(events)


def _with_place(
    operations: Sequence[Operation],
    under_way: set[int],
    configurations: set[_Configuration],
    returned: int,
) -> set[_Configuration]:
    """Every configuration in which the operation that returns has found its place, and is forgotten."""
    reached: set[_Configuration] = set()
    waiting = list(configurations)
    seen: set[_Configuration] = set()
    while waiting:
        value, placed = waiting.pop()
        # A read of the value that is current takes its place at once: nothing is better later.
        placed |= {n for n in under_way if operations[n].kind == "read" and operations[n].value == value}
        if (value, placed) in seen:
            continue
        seen.add((value, placed))
        if len(seen) > CONFIGURATIONS_MAX:
            raise Undecided(operations[returned].key)
        if returned in placed:
            reached.add((value, placed - {returned}))
            continue
        writes = [n for n in under_way - placed if operations[n].kind == "write"]
        waiting += [(operations[n].value, placed | {n}) for n in writes]
    return reached


def _undominated(configurations: set[_Configuration], operations: Sequence[Operation]) -> set[_Configuration]:
    """Without those that have used up more writes of unknown outcome than another that is else equal."""
    alike: dict[_Configuration, list[frozenset[int]]] = {}
    for value, placed in configurations:
        used = frozenset(n for n in placed if operations[n].outcome == "unknown")
        alike.setdefault((value, placed - used), []).append(used)
    kept: set[_Configuration] = set()
    for (value, placed), alternatives in alike.items():
        least: list[frozenset[int]] = []
        for used in sorted(alternatives, key=len):
            if not any(fewer <= used for fewer in least):
                least.append(used)
        kept |= {(value, placed | used) for used in least}
    return kept


def _no_order(key: str, operations: Sequence[Operation], returned: int) -> Violation:
    culprit = operations[returned]
    earlier = [o for o in operations if o.called_at <= culprit.ends_at]
    shown = sorted(earlier, key=lambda o: (o.called_at, o.ends_at))[-SHOWN_MAX:]
    if culprit not in shown:
        shown.insert(0, culprit)
    reason = f"no order of the operations until {culprit.ends_at:.6g} explains this one: {culprit}"
    return Violation(key, reason, tuple(shown))
