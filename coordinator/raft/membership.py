"""Who votes, and what a majority of them has reached.

The set is fixed for the life of the core. Learners and one-at-a-time changes (dissertation, chapter 4) find
their place here: everything that counts members asks this object and nothing else.
"""

from collections.abc import Mapping


class Membership:
    """The voting members, in the order of their ids: no outcome depends on the order of configuration."""

    __slots__ = ("own_id", "peers", "quorum", "voters")

    def __init__(self, own_id: str, members: tuple[str, ...]) -> None:
        assert own_id in members, f"{own_id!r} is not among the members {members!r}"
        assert len(set(members)) == len(members), f"a member is named twice in {members!r}"
        assert all(members), "a member's id is empty"
        self.own_id = own_id
        self.voters = tuple(sorted(members))
        self.peers = tuple(voter for voter in self.voters if voter != own_id)
        self.quorum = len(self.voters) // 2 + 1  # more than half: two of two, three of four

    def is_peer(self, member: str) -> bool:
        """True for every member but this one."""
        return member in self.peers

    def reached_by_majority(self, values: Mapping[str, int]) -> int:
        """The highest value that a majority of the voters has reached; a missing voter counts as 0."""
        ascending = sorted(values.get(voter, 0) for voter in self.voters)
        return ascending[len(ascending) - self.quorum]

    def election_outcome(self, votes: Mapping[str, bool]) -> bool | None:
        """True if a majority granted, False if so many refused that none can, None while it is open."""
        granted = sum(votes.get(voter, False) for voter in self.voters)
        refused = sum(not votes.get(voter, True) for voter in self.voters)
        if granted >= self.quorum:
            return True
        return False if refused > len(self.voters) - self.quorum else None
