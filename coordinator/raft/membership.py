"""The members of the group, the majority of the voters, and changes of membership.

Sources: dissertation 4.1 (one voter at a time; a change is in force as soon as it is in the log, so that any
two majorities meet; a truncated change is undone), 4.2.1 (learners), 4.2.2 (removal). Also Ongaro's mail to
raft-dev of 2015-07-10: a leader changes no membership before it has committed an entry of its own term.
"""

from collections.abc import Mapping, Sequence

import msgspec

from coordinator.raft.messages import Entry, EntryKind, Members, MembershipChange

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(MembershipChange)


def encode_membership(change: MembershipChange) -> bytes:
    """Return the data of a MEMBERSHIP entry."""
    return _encoder.encode(change)


def decode_membership(data: bytes) -> MembershipChange:
    """Decode a MEMBERSHIP entry. Raises msgspec.MsgspecError for anything else."""
    return _decoder.decode(data)


def is_membership(data: bytes) -> bool:
    """Return whether a MEMBERSHIP entry's data names a possible group."""
    try:
        return is_group(decode_membership(data).members)
    except msgspec.MsgspecError:
        return False


def is_group(members: Members) -> bool:
    """Return whether there are voters, and every member is named once."""
    everyone = members.voters + members.learners
    return bool(members.voters) and all(everyone) and len(set(everyone)) == len(everyone)


class Membership:
    """One membership as one member sees it; the order of the names does not matter."""

    __slots__ = ("learners", "members", "own_id", "peers", "quorum", "voters", "voting_peers")

    def __init__(self, own_id: str, members: Members) -> None:
        self.own_id = own_id
        self.voters = tuple(sorted(members.voters))
        self.learners = tuple(sorted(members.learners))
        everyone = self.voters + self.learners
        assert self.voters, "a group without voters"
        assert len(set(everyone)) == len(everyone), f"a member is named twice in {everyone!r}"
        assert all(everyone), "a member's id is empty"
        self.members = Members(self.voters, self.learners)
        self.peers = tuple(member for member in everyone if member != own_id)
        self.voting_peers = tuple(voter for voter in self.voters if voter != own_id)
        self.quorum = len(self.voters) // 2 + 1  # more than half: two of two, three of four

    @property
    def is_voter(self) -> bool:
        """Return whether this member's own vote counts."""
        return self.own_id in self.voters

    def is_peer(self, member: str) -> bool:
        """Return True for every member but this one."""
        return member in self.peers

    def reached_by_majority(self, values: Mapping[str, int]) -> int:
        """Return the highest value that a majority of the voters has reached; a missing voter counts as 0."""
        ascending = sorted(values.get(voter, 0) for voter in self.voters)
        return ascending[len(ascending) - self.quorum]

    def election_outcome(self, votes: Mapping[str, bool]) -> bool | None:
        """Return True if a majority granted, False if none is possible any more, None while it is open."""
        granted = sum(votes.get(voter, False) for voter in self.voters)
        refused = sum(not votes.get(voter, True) for voter in self.voters)
        if granted >= self.quorum:
            return True
        return False if refused > len(self.voters) - self.quorum else None

    def why_not(self, target: Members) -> str:
        """Return why `target` may not follow this membership in one step, "" if it may.

        Two majorities meet only if at most one voter is added or removed.
        """
        everyone = target.voters + target.learners
        if not is_group(target):
            return "a group needs voters, and each member once"
        if len(set(target.voters) ^ set(self.voters)) > 1:
            return "at most one voter comes or goes at a time"
        if len(set(everyone) ^ set(self.voters + self.learners)) > 1:
            return "at most one member comes or goes at a time"
        return ""


class MembershipHistory:
    """The membership at the commit index, and those of later entries, which may still be truncated."""

    __slots__ = ("_own_id", "_steps")

    def __init__(self, own_id: str, base: Members) -> None:
        self._own_id = own_id
        self._steps: list[tuple[int, Membership]] = [(0, Membership(own_id, base))]

    @property
    def latest(self) -> Membership:
        """Return the membership in force."""
        return self._steps[-1][1]

    @property
    def latest_index(self) -> int:
        """Return the log index of the membership in force; 0 for the initial one."""
        return self._steps[-1][0]

    @property
    def may_stand(self) -> bool:
        """Return whether this member may start an election.

        It may if it is a voter, or if its removal is not committed yet. In the second case others may lack
        the entry that removes it, and only its log may be good enough to win (dissertation, 4.2.2). It does
        not count its own vote.
        """
        return any(membership.is_voter for _, membership in self._steps)

    def note_appended(self, entries: Sequence[Entry]) -> bool:
        """Note new entries of the log. Return True if the membership changed."""
        changed = False
        for entry in entries:
            if entry.kind is EntryKind.MEMBERSHIP:
                members = decode_membership(entry.data).members
                self._steps.append((entry.index, Membership(self._own_id, members)))
                changed = True
        return changed

    def note_truncated(self, index: int) -> bool:
        """Note that entries from `index` on were truncated. Return True if the membership changed back."""
        before = len(self._steps)
        while len(self._steps) > 1 and self._steps[-1][0] >= index:
            self._steps.pop()
        return len(self._steps) != before

    def note_committed(self, index: int) -> None:
        """Forget earlier memberships, as a committed one is never undone."""
        while len(self._steps) > 1 and self._steps[1][0] <= index:
            del self._steps[0]

    def note_restored(self, index: int, members: Members) -> None:
        """Note that a snapshot at `index` replaced the log."""
        self._steps = [(index, Membership(self._own_id, members))]
