"""The checker of histories, checked: it sees what is planted, and agrees with trying every order."""

import itertools
import random
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.history import Operation, Undecided, Violation, check
from tests.history_records import Kind, Outcome, Value
from tests.history_search import search


def operation(
    kind: Kind,
    value: Value,
    called_at: float,
    returned_at: float | None,
    *,
    outcome: Outcome = "ok",
    client: str = "c1",
    key: str = "k",
) -> Operation:
    return Operation(
        client=client,
        key=key,
        kind=kind,
        value=value,
        called_at=called_at,
        returned_at=returned_at,
        outcome=outcome,
    )


def wrote(value: Value, called_at: float, returned_at: float) -> Operation:
    return operation("write", value, called_at, returned_at)


def read(value: Value, called_at: float, returned_at: float) -> Operation:
    return operation("read", value, called_at, returned_at)


def lost(value: Value, called_at: float) -> Operation:
    """A write of which nobody knows what came of it."""
    return operation("write", value, called_at, None, outcome="unknown")


def refused(value: Value, called_at: float, returned_at: float) -> Operation:
    return operation("write", value, called_at, returned_at, outcome="failed")


def both(history: Sequence[Operation]) -> Violation | None:
    """The verdict of the quick check, which the search must share."""
    found = check(history)
    assert (found is None) == (search("k", history, None) is None)
    return found


SOUND = {
    "nothing": [],
    "initial value": [read(None, 1, 2)],
    "write then read": [wrote("a", 1, 2), read("a", 3, 4)],
    "read during the write finds either": [wrote("a", 1, 9), read(None, 2, 3), read("a", 4, 5)],
    "unknown write never seen": [wrote("a", 1, 2), lost("b", 3), read("a", 4, 5)],
    "unknown write seen late": [wrote("a", 1, 2), lost("b", 3), read("a", 4, 5), read("b", 6, 7)],
    "refused write never seen": [wrote("a", 1, 2), refused("b", 3, 4), read("a", 5, 6)],
    "equal times are concurrent": [wrote("a", 1, 2), wrote("b", 2, 3), read("a", 3, 4)],
    "concurrent writes in either order": [wrote("a", 1, 5), wrote("b", 1, 5), read("a", 6, 7)],
}
UNSOUND = {
    "stale read": (
        [wrote("a", 1, 2), wrote("b", 3, 4), read("a", 5, 6), read("b", 7, 8)],
        "stale read",
    ),
    "lost write": (
        [wrote("a", 1, 2), wrote("b", 3, 4), read("a", 5, 6), read("a", 7, 8)],
        "lost write",
    ),
    "all is lost": ([wrote("a", 1, 2), read(None, 3, 4)], "lost write"),
    "applied twice": (
        [wrote("a", 1, 2), wrote("b", 3, 4), read("b", 5, 6), read("a", 7, 8)],
        "applied twice",
    ),
    "never written": ([wrote("a", 1, 2), read("x", 3, 4)], "nobody ever wrote"),
    "refused and yet there": ([refused("a", 1, 2), read("a", 3, 4)], "had failed"),
    "before it was written": ([read("a", 1, 2), wrote("a", 3, 4)], "before it was written"),
    "unknown, seen, unseen": (
        [wrote("a", 1, 2), lost("b", 3), read("b", 4, 5), read("a", 6, 7)],
        "seen and then unseen",
    ),
    "two readers disagree on the order": (
        [wrote("a", 1, 9), wrote("b", 1, 9), read("a", 10, 11), read("b", 12, 13)],
        "neither can be the first",
    ),
}


@pytest.mark.parametrize("history", SOUND.values(), ids=SOUND)
def test_history_that_a_register_could_give_is_accepted(history: list[Operation]) -> None:
    assert both(history) is None


@pytest.mark.parametrize(("history", "reason"), UNSOUND.values(), ids=UNSOUND)
def test_planted_violation_is_found_and_named(history: list[Operation], reason: str) -> None:
    found = both(history)

    assert found is not None
    assert reason in found.reason
    assert found.operations


def test_violation_can_be_read_by_a_person() -> None:
    found = check([wrote("a", 1, 2), lost("b", 3), read("b", 4, 5), read("a", 6, 7)])

    assert found is not None
    assert str(found).splitlines() == [
        (
            "key k: a write of unknown outcome was seen and then unseen. 'a' had taken effect by 2, before"
            " an operation with 'b' was called at 4; 'b' had by 5, before 'a' was found by a read called at"
            " 6: neither can be the first"
        ),
        "  [         1 ..          2] c1 writes 'a' (ok)",
        "  [         3 ..      ?    ] c1 writes 'b' (unknown)",
        "  [         4 ..          5] c1 reads  'b' (ok)",
        "  [         6 ..          7] c1 reads  'a' (ok)",
    ]


def test_keys_are_judged_by_themselves_and_the_wrong_one_is_named() -> None:
    good = [operation("write", "a", 1, 2, key="good"), operation("read", "a", 3, 4, key="good")]
    bad = [operation("write", "a", 1, 2, key="bad"), operation("read", None, 3, 4, key="bad")]

    found = check(good + bad)

    assert found is not None
    assert found.key == "bad"
    assert check(good) is None


def test_initial_value_can_be_told() -> None:
    assert check([read("old", 1, 2)], initial="old") is None
    assert check([read("old", 1, 2)]) is not None


def test_value_that_is_written_again_may_be_found_again() -> None:
    history = [wrote("a", 1, 2), wrote("b", 3, 4), wrote("a", 5, 6), read("a", 7, 8)]
    deleted = [wrote("a", 1, 2), wrote(None, 3, 4), read(None, 5, 6)]

    assert check(history) is None
    assert check(deleted) is None


def test_repeated_values_hide_no_violation() -> None:
    history = [wrote("a", 1, 2), wrote("b", 3, 4), wrote("a", 5, 6), read("b", 7, 8)]

    found = check(history)

    assert found is not None
    assert "no order" in found.reason
    assert "reads  'b'" in found.reason


def test_search_gives_up_by_name_where_too_many_orders_are_possible() -> None:
    writes = [operation("write", "same" if n < 2 else n, 1, 100 + n, client=f"c{n}") for n in range(24)]

    with pytest.raises(Undecided):
        check([*writes, read("same", 2, 3), read("other", 4, 5)])


def is_sound(history: Sequence[Operation]) -> bool:
    """By trying every order of every choice of unknown writes. For a handful of operations."""
    must = [o for o in history if o.outcome == "ok"]
    may = [o for o in history if o.outcome == "unknown" and o.kind == "write"]
    for count in range(len(may) + 1):
        for chosen in itertools.combinations(may, count):
            if any(is_legal(order) for order in itertools.permutations([*must, *chosen])):
                return True
    return False


def is_legal(order: Sequence[Operation]) -> bool:
    value: Value = None
    latest_call = -1.0
    for now in order:
        if now.ends_at < latest_call:
            return False
        latest_call = max(latest_call, now.called_at)
        if now.kind == "write":
            value = now.value
        elif now.value != value:
            return False
    return True


@st.composite
def small_histories(draw: st.DrawFn, *, unique: bool) -> list[Operation]:
    history = []
    for number in range(draw(st.integers(1, 6))):
        kind: Kind = draw(st.sampled_from(("read", "write")))
        outcome: Outcome = draw(st.sampled_from(("ok", "ok", "ok", "unknown", "failed")))
        value = draw(st.integers(0, 5 if unique else 2)) or None
        if kind == "write" and unique:
            value = number + 1
        called_at = draw(st.integers(0, 12))
        returned_at = None if outcome == "unknown" else called_at + draw(st.integers(1, 8))
        history.append(operation(kind, value, called_at, returned_at, outcome=outcome))
    return history


@settings(max_examples=400, deadline=None)
@given(small_histories(unique=True))
def test_both_checks_agree_with_trying_every_order_of_unique_values(history: list[Operation]) -> None:
    assert (both(history) is None) == is_sound(history)


@settings(max_examples=200, deadline=None)
@given(small_histories(unique=False))
def test_search_agrees_with_trying_every_order_of_repeated_values(history: list[Operation]) -> None:
    assert (check(history) is None) == is_sound(history)


def run_of_a_register(seed: int, *, operations: int, keys: int, clients: int) -> list[Operation]:
    """What clients of a real register see: each takes effect at one moment between its call and return."""
    dice = random.Random(seed)
    free_at = [0.0] * clients
    values: dict[str, Value] = {}
    planned = []
    for number in range(operations):
        client = min(range(clients), key=free_at.__getitem__)
        called_at = free_at[client] + dice.random()
        effect_at = called_at + dice.random()
        free_at[client] = effect_at + dice.random()
        kind: Kind = "read" if dice.random() < 0.5 else "write"
        outcome: Outcome = "unknown" if kind == "write" and dice.random() < 0.05 else "ok"
        planned.append((effect_at, number, client, kind, outcome, called_at, free_at[client]))
    history = []
    for _, number, client, kind, outcome, called_at, returned_at in sorted(planned):
        key = f"k{dice.randrange(keys)}"
        if kind == "write" and (outcome == "ok" or dice.random() < 0.5):
            values[key] = f"v{number}"
        value = f"v{number}" if kind == "write" else values.get(key)
        end = returned_at if outcome == "ok" else None
        history.append(operation(kind, value, called_at, end, outcome=outcome, client=f"c{client}", key=key))
    return history


def test_long_history_of_many_clients_is_accepted() -> None:
    history = run_of_a_register(3, operations=100_000, keys=200, clients=20)

    started_at = time.perf_counter()
    found = check(history)

    print(f"{len(history)} operations in {time.perf_counter() - started_at:.2f} s")
    assert found is None


@pytest.mark.parametrize("seed", range(5))
def test_one_stale_read_in_a_long_history_is_found(seed: int) -> None:
    history = run_of_a_register(seed, operations=5000, keys=20, clients=20)
    dice = random.Random(seed)
    key = f"k{dice.randrange(20)}"
    acknowledged = [o for o in history if o.key == key and o.kind == "write" and o.outcome == "ok"]
    end = max(o.called_at for o in history) + 10
    assert check(history) is None

    history.append(operation("read", acknowledged[len(acknowledged) // 2].value, end, end + 1, key=key))

    found = check(history)
    assert found is not None
    assert found.key == key
