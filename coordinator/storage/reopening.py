"""Check a member's log against its database at start. Shared by start and rebuilding.

Either they agree, or the result says what was lost. All functions block.

A database beyond the log is one of two things. A snapshot was being installed when the process died, as
recorded by `coordinator.storage.promises`: then the log starts again after it. Or the log has lost its end,
including votes and acknowledged entries of this member (dissertation, 3.8). A term or a vote that is in the
promises but not in the log shows the latter too.

A member that has lost them must neither vote nor lead, as that could cause two leaders of one term, or a
leader without committed entries. It continues as a recovering member (the name is that of Viewstamped
Replication; Liskov and Cowling 2012, 4.3): its earlier actions do not count in the terms up to the last that
it can have taken part in. So it enters the next term, and accepts entries of a leader of that or a later
term. Such a leader was elected without this member's vote, by a majority that has every committed entry
without it. Once an entry of such a term is in this log, the loss is repaired. This entry alone ends the
recovery, so nothing else needs to be recorded.
"""

from dataclasses import replace

from ca.errors import Internal
from coordinator.raft.messages import HardState
from coordinator.storage.raft_log import SegmentLog
from coordinator.storage.state_damage import StateDamaged
from coordinator.storage.state_store import Store, replay

_REBUILD = "Create this member again with `filestore coordinator rebuild`, under a new name."


class StateLost(Internal):
    """This member's promises, or its database, are lost; the process must not run on the rest."""


def recover(log: SegmentLog, store: Store) -> str:
    """Make log and database agree. Return a sentence for the operator about a loss, "" without one.

    Raises StateDamaged if the log no longer has entries that the database lacks, which other members have.
    Raises StateLost if the log was lost together with the promises.
    """
    index, term = store.applied()
    known, promised = log.hard_state, log.promised
    if (index and log.is_new and not promised.term) or (promised.term and not index and log.is_new):
        raise StateLost(f"The log is empty, but this member is not new: the log was lost. {_REBUILD}")
    if index < log.first_index() - 1:
        raise StateDamaged(
            f"state.sqlite ends at entry {index}, and the log begins at {log.first_index()}: it was lost or"
            " replaced"
        )
    if max(known.term, promised.term) < term:
        raise StateLost(
            f"The database is of term {term}, but the log knows none after {known.term}: its end was "
            f"lost. {_REBUILD}"
        )
    is_behind = index > log.last_index() or log.term(index) != term
    lost = ""
    if is_behind:
        store.checkpoint()  # the log is going to begin after it
    if promised.is_ahead_of(known):
        lost = f"it knows term {known.term}, but something was promised in term {promised.term}"
    elif is_behind and promised.installing != (index, term):
        lost = f"it ends at entry {log.last_index()}, and the database holds entry {index}"
    if lost:
        lost = _forgotten(log, index, term, lost, is_behind=is_behind)
    elif is_behind:
        log.reset(HardState(known.term, known.vote, index), index, term)
    _settle(log)
    replay(log, log.hard_state.commit, store)
    return lost


def _forgotten(log: SegmentLog, index: int, term: int, what: str, *, is_behind: bool) -> str:
    """Continue in a term without forgotten promises, and record the last term that may have some."""
    known, promised = log.hard_state, log.promised
    lost_term = max(known.term, promised.term, promised.lost_term, term)
    # Before the log forgets the reason.
    log.promise(replace(promised, lost_term=lost_term, installing=(0, 0)))
    if log.promised.lost_term != lost_term:
        raise StateLost(
            f"The log has lost its end: {what}. The disk has no room to record that. Free some space."
        )
    if is_behind:
        log.reset(HardState(lost_term + 1, "", index), index, term)
    else:
        log.append(HardState(lost_term + 1, "", known.commit), None, (), sync=True)
    return (
        f"The log has lost its end: {what}. The votes and acknowledgements of this coordinator up to "
        f"term {lost_term} are lost, so it neither votes nor leads until a leader of a later term has "
        "sent it the missing entries, which needs a majority of the others. Check its disk. If this "
        "does not help, create it again with `filestore coordinator rebuild`, under a new name."
    )


def _settle(log: SegmentLog) -> None:
    """Promise the term and vote of the log, without an installation."""
    hard_state = log.hard_state
    settled = replace(log.promised, term=hard_state.term, vote=hard_state.vote, installing=(0, 0))
    if settled != log.promised:
        log.promise(settled)
