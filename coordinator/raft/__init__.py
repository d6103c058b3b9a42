"""The Raft core: what one member of the coordinator group must do next, as data.

No clock, dice, disk, net, tasks or logs here.

Source of every rule: D. Ongaro, "Consensus: Bridging Theory and Practice" (2014), named below as
"dissertation".

The contract with the driver
----------------------------
The driver owns the clock, the disk, the network and the state machine. It feeds the core with `tick(ticks)`,
`step(message)`, `propose(datas)` and `read_index(context)`, all of which return at once. Then, while
`has_ready()` is true, it does the following steps in this order. It may sleep for `due_in_ticks`, a time that
later input may change, and it must report the elapsed ticks before other input. No promise depends on time,
only how soon something happens.

1. `r = ready()`: takes all pending work out of the core. `ready()` is not called again before `advance(r)`.
2. Send `r.send_now`. These messages do not depend on this member's disk, so they travel while it syncs
   (dissertation, 10.2.1).
3. If there is an `r.snapshot`, install it: the state machine becomes that state, then the log becomes empty
   and begins behind it, with `r.hard_state` in it. Otherwise write `r.hard_state`, then `r.truncate_from`
   (drop that index and all above), then `r.entries`. Without a snapshot this is one batch in this order: a
   torn batch must not hold entries of a term that the member does not know. Sync it if `r.must_sync`. After a
   failed write or sync the process ends.
4. Only then send `r.send_after_sync`: votes, requests for votes, acknowledgements. They are promises about
   the disk.
5. Fail `r.reads_refused`; serve each of `r.read_states` once the state machine has applied `index`.
6. `advance(r)`: reports to the core that 2 to 4 are done. Only now does a leader count itself, and a
   candidate its own vote.
7. Apply `r.committed` in order, and call `note_applied(index)`. All of these entries are on this member's
   disk by now (from earlier batches, or from this one). The driver may handle the next Ready meanwhile.
8. If there is an `r.offer`, fetch that snapshot from its source, in any time, verify it, and call
   `restore(meta)` between two Readys, while no entry is being applied. The next Ready then holds it as
   `snapshot`. If `r.take_snapshot`, make a snapshot of the applied state and call `snapshot_taken(meta)`: a
   follower needs entries that the log no longer holds.

Steps 2 to 4 and 7 may run in other threads. Meanwhile the core accepts ticks, messages, proposals and reads;
their results are part of the next `Ready`. If step 3 takes long and is no snapshot, the driver may call
`ready_without_disk()`. It returns the results that do not depend on the disk, `send_now` and reads, to be
handled at once as in steps 2 and 5. All calls into the core come from one thread. Messages may be lost,
doubled, delayed and reordered; that only costs time. The driver may compact the log up to the state that the
state machine holds durably; the core asks the storage for its first index each time.

What the core promises
----------------------
* `committed` is the same sequence of entries on every member, each index exactly once per life of the core,
  in order.
* A read state's index is at least every index that any member had handed out as committed when `read_index`
  was called.
* Every context given to `read_index` comes back exactly once, as a read state or refused, provided that calls
  of `tick` and `ready` continue.
* An accepted proposal is not necessarily committed: after a change of leader its index may hold another
  entry. The driver compares index and term with those in `committed`.
* Memory is bounded by `Config`: only entries that are not yet on this disk are kept; others are read through
  `Storage`.
* `step` never raises for the content of a message: a message for another member, from a stranger, or
  inconsistent in itself is dropped and counted in `Status.messages_refused`. Assertions are for broken
  invariants, and stop the process.

The modules: `core` the entry points, `election` who leads, `replication` the log to the followers, `reads`
ReadIndex, `snapshots` for followers that lag too far, `log_view` one log of the entries on disk and those not
there yet, `progress` the leader's knowledge of a follower, `membership` who counts, `state` the shared state,
`messages` the facts, `storage` the interface of the log on disk.
"""
