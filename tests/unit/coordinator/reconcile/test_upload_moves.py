"""Where unfinished uploads go when nodes leave: decided from facts that are handed in."""

import pytest

from coordinator.reconcile.facts import Facts
from coordinator.reconcile.upload_moves import Survey, copies_wanted, new_placement, obstacle, targets
from metadata.model.records import PlacedUpload
from tests.unit.coordinator.reconcile.test_reconcile_plans import GIB, facts, node


def upload(*placement: str, offset_bytes: int = GIB) -> PlacedUpload:
    return PlacedUpload(
        file_uuid="f1",
        kind="vm",
        placement=list(placement),
        offset_bytes=offset_bytes,
        epoch=0,
        prefix_sha256="aa",
    )


def cluster(*leaving: str, down: tuple[str, ...] = (), free: dict[str, int] | None = None) -> Facts:
    states = {name: "down" if name in down else "healthy" for name in ("n1", "n2", "n3", "n4", "n5")}
    nodes = [node(name, state, draining=name in leaving) for name, state in states.items()]
    return facts(*nodes, free=free)


def test_nodes_of_the_placement_get_a_copy_before_others_and_none_that_has_one_leaves_or_is_full() -> None:
    found = targets(upload("n1", "n2", "n3"), ["n2"], cluster("n1"))
    assert found[0] == "n3"
    assert sorted(found[1:]) == ["n4", "n5"]
    assert targets(upload("n1", "n2", "n3"), ["n2"], cluster("n1", free={"n3": 1, "n5": 1})) == ["n4"]
    assert targets(upload("n1", "n2"), ["n2"], cluster("n1", "n3", "n4", down=("n5",))) == []


def test_no_fewer_nodes_shall_have_it_than_before_and_the_write_quorum_at_least() -> None:
    assert copies_wanted(["n1"], cluster("n1")) == 2
    assert copies_wanted(["n1", "n2", "n3"], cluster("n1")) == 3
    assert copies_wanted(["n1", "n2", "n3"], cluster("n1", "n4", "n5")) == 2


def test_holder_that_stays_goes_on_and_one_that_leaves_is_followed_by_a_node_that_has_the_bytes() -> None:
    assert new_placement(upload("n2", "n1", "n3"), ["n3", "n2"], cluster("n1")) == ["n2", "n3", *rest("n1")]
    assert new_placement(upload("n1", "n2", "n3"), ["n3"], cluster("n1"))[:2] == ["n3", "n2"]
    assert new_placement(upload("n1", "n2", "n3"), ["n4", "n5"], cluster("n1", "n2", "n3")) == ["n4", "n5"]


def rest(leaving: str) -> list[str]:
    """Who comes third where n2 and n3 have it."""
    return targets(upload("n2", leaving, "n3"), ["n2", "n3"], cluster(leaving))[:1]


def test_placement_names_no_node_that_leaves_or_is_down_and_each_once() -> None:
    placement = new_placement(upload("n1", "n2", "n3", offset_bytes=0), [], cluster("n1", down=("n3",)))
    assert placement[0] == "n2"
    assert sorted(placement) == ["n2", "n4", "n5"]
    assert new_placement(upload("n1"), [], cluster("n1", "n2", "n3", "n4", "n5")) == []


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        ({"n1": "absent", "n2": "absent"}, True),
        ({"n1": "absent", "n2": "here"}, False),
        ({"n1": "absent", "n2": ""}, False),
        ({"n1": "absent"}, False),
    ],
)
def test_upload_is_lost_when_every_member_of_its_placement_says_so(said: dict[str, str], lost: bool) -> None:
    assert Survey(upload("n1", "n2"), said).is_lost(cluster("n1")) is lost
    assert Survey(upload("n1", "n2", "n9"), said).is_lost(cluster("n1")) is lost  # n9 was removed
    assert not Survey(upload("n1", "n2", offset_bytes=0), said).is_lost(cluster("n1"))


def test_upload_is_busy_when_one_node_says_so() -> None:
    assert Survey(upload("n1", "n2"), {"n1": "here", "n2": "busy"}).is_busy
    assert not Survey(upload("n1", "n2"), {"n1": "here", "n2": ""}).is_busy


def test_nobody_is_asked_about_an_upload_that_has_nowhere_to_go() -> None:
    assert obstacle(upload("n1", "n2"), cluster("n1")) == ""
    one_left = cluster("n1", "n3", "n4", "n5")
    assert "only 1 of the remaining nodes can hold it, 2 are" in obstacle(upload("n1", "n2"), one_left)
    assert obstacle(upload("n1", "n2", offset_bytes=0), one_left) == ""
    full = cluster("n1", free={"n3": 0, "n4": 0, "n5": 0})
    assert "1 of the remaining nodes" in obstacle(upload("n1", "n2"), full)
