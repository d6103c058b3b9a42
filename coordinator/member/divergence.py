"""Find the member with a wrong state by comparing the reported digests for the same place in the log.

No I/O here. Reports come from the log, so every member sees the same reports and reaches the same result.
Only three facts show which member is odd:

- A member says itself that its state cannot be read.
- A majority of the voters has another digest. Members that have copied their state from each other, without a
  confirmation of the copy, are one witness: they would have the same damage.
- A voter has the digest that a majority had of the same rows before, and no member knows of a later entry of
  the log that changed them. Then the state of a member with another digest has changed without an entry.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from coordinator.storage.snapshot_origins import UNKNOWN
from metadata.model.records import StateHash

# Places in the log whose digests are remembered. A member that was away finds its difference at the place
# where it stopped: its report is as many places late as were hashed meanwhile. About 600 bytes each.
INDEXES_MAX = 1024
REPORTERS_MAX = 64  # digests remembered for one place: more than a group has members
OPEN_MAX = 16  # old differences that stay remembered until the odd member is known
AGREED_MAX = 65_536  # slices of the last pass: enough for more than ten million files


class DigestComparison(Enum):
    """The comparison of this member's digest with those of others, at one place."""

    AGREED = "agreed"  # a majority of witnesses has the same
    DIFFERS = "differs"  # another member, not known to be odd, has another digest
    OPEN = "open"  # none of these yet


@dataclass(frozen=True, slots=True)
class ReportedDigest:
    """One member's report of its state at a place. See commands.ReportHash."""

    digest: str
    origin: str = ""
    agreed_at: int = 0
    touched: bool = False


@dataclass(frozen=True, slots=True)
class Divergence:
    """Members that applied the same log up to `log_index` differ.

    `odd`: the members with a wrong state, sorted; empty while it is only known that some member is wrong.
    """

    log_index: int
    odd: tuple[str, ...]


@dataclass(slots=True)
class _Place:
    reports: dict[str, ReportedDigest] = field(default_factory=dict)  # by coordinator
    found: Divergence | None = None
    slice: StateHash | None = None  # what this member hashed there


@dataclass(slots=True)
class _AgreedDigests:
    """The digests of a majority for the positions of one table, in the last pass and in this one."""

    by_position: dict[str, tuple[str, int]] = field(default_factory=dict)  # digest, log index
    began: tuple[int, int] = (0, 0)  # the last pass, and this one


class DivergenceWatch:
    """Remembers reports for a bounded number of places in the log."""

    def __init__(self, own_id: str) -> None:
        self._own_id = own_id
        self._places: dict[int, _Place] = {}
        self._agreed: dict[str, _AgreedDigests] = {}
        self._table = ""
        self.odd: set[str] = set()  # including this member, and removed ones
        self.origins: dict[str, str] = {}  # by coordinator: the source of its state, by its last report

    def note_own(self, log_index: int, digest: str, hashed: StateHash | None = None) -> None:
        """Record this member's own digest, from the state machine; it is known before any report about it.

        `hashed`: the slice, if its digest is compared with earlier agreements.
        """
        self._remember(log_index, self._own_id, ReportedDigest(digest, self.origins.get(self._own_id, "")))
        if hashed is not None and (place := self._places.get(log_index)) is not None:
            place.slice = hashed
            self._begin_table(hashed)

    def own_digest(self, log_index: int) -> str:
        """Return the digest that `note_own` was called with for this place, "" if forgotten."""
        place = self._places.get(log_index)
        own = place.reports.get(self._own_id) if place is not None else None
        return "" if own is None else own.digest

    def agreed_at(self, hashed: StateHash) -> int:
        """Return where a majority had this digest of the same, unchanged rows; 0 if unknown."""
        known = self._agreed.get(hashed.table, _AgreedDigests()).by_position.get(hashed.position)
        if known is None or not hashed.tracked or hashed.touched or known[0] != hashed.digest:
            return 0
        return known[1]

    def process_report(
        self, coordinator_id: str, log_index: int, report: ReportedDigest | str, voters: Collection[str]
    ) -> Divergence | None:
        """Process a report from the log; return what it newly shows: a difference, or the odd members.

        `coordinator_id` need not be a voter: a learner can be odd, but only voters make a majority. For this
        member, the digest that it computed itself counts, if it is remembered.
        """
        report = ReportedDigest(report) if isinstance(report, str) else report
        self.origins[coordinator_id] = report.origin
        if coordinator_id == self._own_id and (own := self.own_digest(log_index)) and report.digest:
            report = replace(report, digest=own)
        self._remember(log_index, coordinator_id, report)
        place = self._places.get(log_index)
        if place is None:
            return None
        found = self._compare(log_index, place, voters)
        if found is None or found == place.found:
            return None
        place.found = found
        self.odd.update(found.odd)
        return found

    def forget(self, member: str) -> None:
        """Forget the reports of this member, whose state has been replaced."""
        for place in self._places.values():
            place.reports.pop(member, None)

    def compare_own(self, log_index: int, voters: Collection[str]) -> DigestComparison:
        """Return the comparison of this member's digest at a place so far."""
        place = self._places.get(log_index)
        if place is None or self._own_id not in place.reports:
            return DigestComparison.OPEN
        own = place.reports[self._own_id].digest
        if len(_digests(place.reports, self.odd | {self._own_id}) | {own}) > 1:
            return DigestComparison.DIFFERS
        is_agreed = own and majority_digest(_believed(place.reports, self.odd), voters) == own
        return DigestComparison.AGREED if is_agreed else DigestComparison.OPEN

    def is_right(self, log_index: int, voters: Collection[str]) -> bool:
        """Return whether this member has at a place the digest of a majority of witnesses.

        The digest of all voters that are not known to be odd suffices as well.
        """
        place = self._places.get(log_index)
        own = self.own_digest(log_index)
        if place is None or not own:
            return False
        reports, sound = _believed(place.reports, self.odd), set(voters) - self.odd
        is_unanimous = sound <= set(reports) and {reports[voter].digest for voter in sound} == {own}
        return is_unanimous or majority_digest(reports, voters) == own

    def has_reported(self, coordinator_id: str, log_index: int) -> bool:
        """Return whether this member has reported its digest of this place."""
        place = self._places.get(log_index)
        return place is not None and coordinator_id in place.reports

    def open_places(self, members: Collection[str]) -> list[int]:
        """Return places where `members` differ, without a member that is known to be odd."""
        gone = self.odd.union(*(place.reports for place in self._places.values())) - set(members)
        return [
            index
            for index, place in sorted(self._places.items())
            if place.found is not None and len(_digests(place.reports, self.odd | gone)) > 1
        ]

    def digests_at(self, log_index: int) -> dict[str, str]:
        """Return the reported digests of a place, by coordinator."""
        place = self._places.get(log_index)
        return {} if place is None else {name: report.digest for name, report in place.reports.items()}

    def recall(self, log_index: int, digests: Mapping[str, str]) -> None:
        """Restore a difference that was open when the previous process ended."""
        for name, digest in digests.items():
            self._remember(log_index, name, ReportedDigest(digest))
        if log_index in self._places:
            self._places[log_index].found = Divergence(log_index, ())

    def can_do_without(self, since_index: int, voters: Collection[str]) -> bool:
        """Return whether a majority of voters without the odd ones is active.

        At one place since then they all had the same digest.
        """
        for log_index, place in self._places.items():
            sound = [
                place.reports[voter].digest for voter in voters if voter in _believed(place.reports, self.odd)
            ]
            if log_index >= since_index and 2 * len(sound) > len(set(voters)) and len(set(sound)) == 1:
                return True
        return False

    def _compare(self, log_index: int, place: _Place, voters: Collection[str]) -> Divergence | None:
        reports, believed = place.reports, _believed(place.reports, self.odd)
        broken = {member for member, report in reports.items() if not report.digest}
        right = majority_digest(believed, voters)
        if right:
            self._agree(log_index, place, right)
        else:
            left = {report.digest for report in believed.values()}
            right = confirmed_digest(believed, voters) or (left.pop() if len(left) == 1 else "")
        if not broken and len({report.digest for report in reports.values()}) < 2:
            return None
        odd = broken | {member for member, report in reports.items() if right and report.digest != right}
        return Divergence(log_index, tuple(sorted(odd)))

    def _agree(self, log_index: int, place: _Place, digest: str) -> None:
        """Note that a majority has this digest here."""
        if (hashed := place.slice) is None:
            return
        agreed = self._agreed.setdefault(hashed.table, _AgreedDigests())
        if log_index >= agreed.began[0] and len(agreed.by_position) < AGREED_MAX:
            known = agreed.by_position.get(hashed.position, ("", 0))
            agreed.by_position[hashed.position] = max(known, (digest, log_index), key=lambda each: each[1])

    def _begin_table(self, hashed: StateHash) -> None:
        """Forget the agreements of the pass before the last, since they prove nothing.

        Other slices may have been hashed since, and changes of these rows are forgotten with them.
        """
        if hashed.table == self._table:
            return
        self._table = hashed.table
        agreed = self._agreed.setdefault(hashed.table, _AgreedDigests())
        agreed.began = (agreed.began[1], hashed.log_index)
        agreed.by_position = {
            position: known for position, known in agreed.by_position.items() if known[1] >= agreed.began[0]
        }

    def _remember(self, log_index: int, coordinator_id: str, report: ReportedDigest) -> None:
        place = self._places.setdefault(log_index, _Place())
        if coordinator_id in place.reports or len(place.reports) < REPORTERS_MAX:
            place.reports[coordinator_id] = report
        skipped = 0
        while len(self._places) > INDEXES_MAX:
            oldest = sorted(self._places)[skipped]
            if skipped < OPEN_MAX and len(_digests(self._places[oldest].reports, self.odd)) > 1:
                skipped += 1
            else:
                del self._places[oldest]


def majority_digest(reports: Mapping[str, ReportedDigest], voters: Collection[str]) -> str:
    """Return the digest of a majority of the voters, "" for none. Copies of one state are one voter."""
    witnesses: dict[str, set[str]] = {}
    for voter in sorted(set(voters) & set(reports)):
        if reports[voter].origin == UNKNOWN:
            continue
        witnesses.setdefault(reports[voter].digest, set()).add(_root(voter, reports))
    right = [digest for digest, roots in witnesses.items() if 2 * len(roots) > len(set(voters))]
    return right[0] if right else ""


def confirmed_digest(reports: Mapping[str, ReportedDigest], voters: Iterable[str]) -> str:
    """Return the digest of voters that equals an earlier agreement on unchanged rows.

    It is "" if there is none, or if members contradict each other.
    """
    confirmed = {reports[voter].digest for voter in voters if voter in reports and reports[voter].agreed_at}
    is_sure = len(confirmed) == 1 and not any(report.touched for report in reports.values())
    return confirmed.pop() if is_sure else ""


def _root(voter: str, reports: Mapping[str, ReportedDigest]) -> str:
    """Return the origin of a voter's state: itself, or the known source that it was copied from."""
    seen = {voter}
    while voter in reports and (origin := reports[voter].origin) and origin not in seen:
        voter = origin
        seen.add(voter)
    return voter


def _believed(reports: Mapping[str, ReportedDigest], odd: Collection[str]) -> dict[str, ReportedDigest]:
    return {member: report for member, report in reports.items() if member not in odd and report.digest}


def _digests(reports: Mapping[str, ReportedDigest], without: Collection[str]) -> set[str]:
    return {report.digest for member, report in reports.items() if member not in without and report.digest}
