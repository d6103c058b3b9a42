-- The state that the replicated log builds, on every coordinator the same. One file, so that it can be read at once.
-- Times are milliseconds since 1970 as stamped by the leader; `sequence` orders lists by creation (it is the log
-- index of the creating command), never a clock. Counts and sums are maintained, not counted.

CREATE TABLE IF NOT EXISTS applied (
    one           INTEGER PRIMARY KEY CHECK (one = 1),
    log_index     INTEGER NOT NULL,               -- the last log entry that this database contains
    term          INTEGER NOT NULL,
    view_version  INTEGER NOT NULL                -- log index of the last change to what nodes watch (see GetView)
) STRICT;

-- What commands mean (see metadata/model/rules.py); without a row the first rules are in force.
CREATE TABLE IF NOT EXISTS rules (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    version  INTEGER NOT NULL
) STRICT;

-- The last `filestore coordinator restore` that this state went through (see RecordRestore).
CREATE TABLE IF NOT EXISTS restores (
    one             INTEGER PRIMARY KEY CHECK (one = 1),
    history         TEXT NOT NULL,                -- drawn then: names of snapshots bear it
    restored_at_ms  INTEGER NOT NULL
) STRICT;

-- Where the next HashState goes on (see coordinator/machine/execution/digests.py).
CREATE TABLE IF NOT EXISTS digest_position (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    table_name  TEXT NOT NULL,
    after       BLOB NOT NULL                     -- primary key of the last row hashed, encoded; empty at the start
) STRICT;

CREATE TABLE IF NOT EXISTS cluster (
    one            INTEGER PRIMARY KEY CHECK (one = 1),
    name           TEXT NOT NULL,
    created_at_ms  INTEGER NOT NULL,
    root_pem       TEXT NOT NULL,
    replicas       INTEGER NOT NULL,              -- copies wanted of every blob
    write_quorum   INTEGER NOT NULL,              -- copies that must be durable before a file is available
    development    INTEGER NOT NULL,              -- 1 allows loopback addresses at join
    burial_floor   INTEGER NOT NULL DEFAULT 0     -- no burial up to this log index is known any more
) STRICT;

CREATE TABLE IF NOT EXISTS coordinators (
    coordinator_id  TEXT PRIMARY KEY,
    address         TEXT NOT NULL,
    peer_port       INTEGER NOT NULL,
    api_port        INTEGER NOT NULL,
    role            TEXT NOT NULL                 -- voter, learner, removed: a removed id is never used again
) STRICT;

CREATE TABLE IF NOT EXISTS keys (
    kid            TEXT PRIMARY KEY,
    purpose        TEXT NOT NULL,                 -- 'intermediate' or 'user_token'
    public         TEXT NOT NULL,                 -- certificate PEM, or the JWK as JSON
    wrapped        BLOB NOT NULL,                 -- the private half under the cluster key (AES-256-GCM)
    created_at_ms  INTEGER NOT NULL,
    retires_at_ms  INTEGER                        -- from when on nothing counts that it has signed; NULL never
) STRICT;

-- Duplicate suppression of retried commands (Ongaro 2014, section 6.3).
CREATE TABLE IF NOT EXISTS sessions (
    session             INTEGER PRIMARY KEY,      -- log index of the command that opened it
    last_log_index      INTEGER NOT NULL,         -- when it was last used: the longest unused ends first
    acknowledged_below  INTEGER NOT NULL          -- the client is done with every smaller sequence
) STRICT;

CREATE TABLE IF NOT EXISTS replies (
    session   INTEGER NOT NULL,
    sequence  INTEGER NOT NULL,
    reply     BLOB NOT NULL,
    PRIMARY KEY (session, sequence)
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS users (
    user_id        TEXT PRIMARY KEY,
    roles          TEXT NOT NULL,                 -- JSON array, sorted
    groups         TEXT NOT NULL,                 -- JSON array, sorted: those that administrators give
    generation     INTEGER NOT NULL,              -- tokens of an older generation are dead
    disabled       INTEGER NOT NULL,
    created_at_ms  INTEGER NOT NULL,
    updated_at_ms  INTEGER NOT NULL,
    sequence       INTEGER NOT NULL DEFAULT 0,    -- log index of the creation: the order of the list
    deleted        INTEGER NOT NULL DEFAULT 0     -- 1: gone for everybody; the row keeps the generation
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS users_by_sequence ON users (sequence, user_id);

-- Groups that an administrator has named: they exist without members, too (coordinator/machine/people/groups.py).
CREATE TABLE IF NOT EXISTS groups (
    group_name   TEXT PRIMARY KEY,
    description  TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Groups that providers of sign-in give to users, beside those in `users.groups`, which administrators give.
CREATE TABLE IF NOT EXISTS group_members (
    user_id     TEXT NOT NULL,
    source      TEXT NOT NULL,                    -- the provider
    group_name  TEXT NOT NULL,
    PRIMARY KEY (user_id, source, group_name)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS group_members_by_group ON group_members (group_name, user_id);

-- Identity providers with which people sign in (coordinator/machine/people/providers.py).
CREATE TABLE IF NOT EXISTS providers (
    name            TEXT PRIMARY KEY,
    issuer          TEXT NOT NULL UNIQUE,
    settings        TEXT NOT NULL,                -- a Provider, as JSON
    secret          BLOB NOT NULL,                -- of its client, under the cluster key (AES-256-GCM); empty for none
    command_secret  BLOB NOT NULL,                -- of the command's client, the same
    updated_at_ms   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Who has signed in with a provider, and as which user. A subject is a person at an issuer for ever.
CREATE TABLE IF NOT EXISTS identities (
    issuer           TEXT NOT NULL,
    subject          TEXT NOT NULL,
    user_id          TEXT NOT NULL,
    provider         TEXT NOT NULL,               -- the name of the provider at the last sign-in
    gave_admin       INTEGER NOT NULL,            -- 1: the role admin of the user is the provider's
    allowed          INTEGER NOT NULL,            -- 0: was in no group that may sign in when last looked at
    created_at_ms    INTEGER NOT NULL,
    PRIMARY KEY (issuer, subject)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS identities_by_user ON identities (user_id);
-- Sessions of users: a first token, and those that were renewed from it. A token that is in none is valid, too.
CREATE TABLE IF NOT EXISTS user_sessions (
    session_id     TEXT PRIMARY KEY,              -- the id of the first token
    user_id        TEXT NOT NULL,
    label          TEXT NOT NULL,                 -- what it is of, for people
    created_by     TEXT NOT NULL,
    created_at_ms  INTEGER NOT NULL,
    renewed_at_ms  INTEGER NOT NULL,
    expires_at_ms  INTEGER NOT NULL,
    ended          INTEGER NOT NULL               -- 1: its tokens are rejected; the row stays until they expire
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS user_sessions_by_user ON user_sessions (user_id, created_at_ms, session_id);
CREATE INDEX IF NOT EXISTS user_sessions_ended ON user_sessions (user_id) WHERE ended = 1;
CREATE INDEX IF NOT EXISTS user_sessions_by_expiry ON user_sessions (expires_at_ms);

-- Links that give a user its first token, once: the newest of each user. Only the hash of the secret is here.
CREATE TABLE IF NOT EXISTS invitations (
    user_id        TEXT PRIMARY KEY,
    secret_sha256  TEXT NOT NULL UNIQUE,
    created_by     TEXT NOT NULL,
    created_at_ms  INTEGER NOT NULL,
    expires_at_ms  INTEGER NOT NULL,
    used_at_ms     INTEGER                        -- NULL: it can be used
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS invitations_by_expiry ON invitations (expires_at_ms);

CREATE TABLE IF NOT EXISTS join_tokens (
    sequence       INTEGER PRIMARY KEY,           -- log index of the creation: the order of the list
    token_id       TEXT NOT NULL UNIQUE,
    secret_sha256  TEXT NOT NULL,
    node_id        TEXT NOT NULL,                 -- '' or the only id that it admits
    uses_max       INTEGER NOT NULL,
    uses           INTEGER NOT NULL,
    created_by     TEXT NOT NULL,
    created_at_ms  INTEGER NOT NULL,
    expires_at_ms  INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS join_tokens_by_expiry ON join_tokens (expires_at_ms);

CREATE INDEX IF NOT EXISTS join_tokens_by_creator ON join_tokens (created_by);

CREATE TABLE IF NOT EXISTS joins (                -- so that a repeated join gets the answer that was lost
    token_id           TEXT NOT NULL,
    node_id            TEXT NOT NULL,
    public_key_sha256  TEXT NOT NULL,
    serial             TEXT NOT NULL,
    joined_at_ms       INTEGER NOT NULL,
    PRIMARY KEY (token_id, node_id, public_key_sha256)
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS nodes (
    node_id       TEXT PRIMARY KEY,
    address       TEXT NOT NULL,
    api_port      INTEGER NOT NULL,
    peer_port     INTEGER NOT NULL,               -- 0 until the node has announced it
    zone          TEXT NOT NULL,
    weight        INTEGER NOT NULL,
    joined_at_ms  INTEGER NOT NULL,
    draining      INTEGER NOT NULL DEFAULT 0,     -- 1: nothing new is placed there
    state         TEXT NOT NULL DEFAULT 'healthy',  -- healthy, down, returning: as the leader has recorded it
    custody_index INTEGER NOT NULL DEFAULT 0,     -- its last ReportDropped: older lists are not acted on any more
    instance      TEXT NOT NULL DEFAULT '',       -- which directory and start speaks for it; '' is not known
    revoked       INTEGER NOT NULL DEFAULT 0      -- 1: it has no live certificate until it joins anew
) STRICT;

-- Nodes whose replicas began or ceased to count: `blobs.missing` is made anew, in steps, behind `after`.
CREATE TABLE IF NOT EXISTS recounts (
    node_id  TEXT PRIMARY KEY,
    after    TEXT NOT NULL,                       -- sha256 of the last replica looked at; '' at the start
    removed  INTEGER NOT NULL                     -- 1: the node is gone for good, its replicas go as well
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS certificates (
    serial             TEXT PRIMARY KEY,
    node_id            TEXT NOT NULL,
    pem                TEXT NOT NULL,
    public_key_sha256  TEXT NOT NULL,
    not_before_ms      INTEGER NOT NULL,
    not_after_ms       INTEGER NOT NULL,
    revoked            INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS certificates_by_node ON certificates (node_id);

CREATE TABLE IF NOT EXISTS buckets (
    bucket_id      TEXT PRIMARY KEY,
    name           TEXT NOT NULL UNIQUE,
    owner_id       TEXT NOT NULL,
    quota_bytes    INTEGER NOT NULL,              -- 0 means none
    used_bytes     INTEGER NOT NULL,
    file_count     INTEGER NOT NULL,
    created_at_ms  INTEGER NOT NULL,
    updated_at_ms  INTEGER NOT NULL,
    sequence       INTEGER NOT NULL DEFAULT 1,    -- log index of the creation: the order of the list
    reserved_bytes INTEGER NOT NULL DEFAULT 0,    -- by uploads under way
    released_bytes INTEGER NOT NULL DEFAULT 0     -- content of deleted files that waits for gc
) STRICT;
CREATE INDEX IF NOT EXISTS buckets_by_sequence ON buckets (sequence, bucket_id);
CREATE INDEX IF NOT EXISTS buckets_by_owner ON buckets (owner_id, sequence);
CREATE INDEX IF NOT EXISTS buckets_over_quota ON buckets (bucket_id)
    WHERE quota_bytes > 0 AND used_bytes + reserved_bytes + released_bytes > quota_bytes;

-- Buckets whose replicas are stored otherwise than `auto`: 'hot' or 'cold' (docs/cold.md).
CREATE TABLE IF NOT EXISTS bucket_storage (
    bucket_id  TEXT PRIMARY KEY REFERENCES buckets (bucket_id) ON DELETE CASCADE,
    storage    TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Who may do what on a bucket, and on every file in it.
CREATE TABLE IF NOT EXISTS bucket_permissions (
    sequence       INTEGER PRIMARY KEY,           -- log index of the creation: the order of the list
    permission_id  TEXT NOT NULL UNIQUE,
    bucket_id      TEXT NOT NULL REFERENCES buckets (bucket_id) ON DELETE CASCADE,
    principal      TEXT NOT NULL,                 -- 'user:ID', 'group:NAME' or 'role:NAME'
    level          INTEGER NOT NULL,              -- 1 read, 2 write, 3 admin
    granted_by     TEXT NOT NULL,
    created_at_ms  INTEGER NOT NULL,
    expires_at_ms  INTEGER,                       -- NULL never
    UNIQUE (bucket_id, principal, level)
) STRICT;
CREATE INDEX IF NOT EXISTS bucket_permissions_by_principal ON bucket_permissions (principal, bucket_id);
CREATE INDEX IF NOT EXISTS bucket_permissions_by_expiry ON bucket_permissions (expires_at_ms)
    WHERE expires_at_ms IS NOT NULL;

CREATE TABLE IF NOT EXISTS files (
    sequence         INTEGER PRIMARY KEY,         -- log index of the creation: the order of every list
    file_uuid        TEXT NOT NULL UNIQUE,
    kind             TEXT NOT NULL,               -- 'project_file', 'vm' or 'backup'; 'partial': a partial upload, no file
    bucket_id        TEXT NOT NULL REFERENCES buckets (bucket_id),
    owner_id         TEXT NOT NULL,
    filename         TEXT NOT NULL,
    content_type     TEXT NOT NULL,
    size_bytes       INTEGER,                     -- NULL until declared or finished
    expected_sha256  TEXT NOT NULL,               -- '' or what the creator declared
    blob_sha256      TEXT REFERENCES blobs (sha256),
    status           TEXT NOT NULL,               -- pending, uploading, available, tombstoned
    retention_hours  INTEGER,                     -- NULL keeps it
    available_at_ms  INTEGER,
    created_at_ms    INTEGER NOT NULL,
    updated_at_ms    INTEGER NOT NULL,
    patch_offset     INTEGER,                     -- where the PATCH began that completed it: -1 for none
    due_at_ms        INTEGER                      -- when it is tombstoned, and then when it goes; NULL never
) STRICT;
CREATE INDEX IF NOT EXISTS files_by_owner ON files (kind, owner_id, sequence);
CREATE INDEX IF NOT EXISTS files_by_kind ON files (kind, sequence);
CREATE INDEX IF NOT EXISTS files_by_bucket ON files (bucket_id, sequence);
CREATE INDEX IF NOT EXISTS files_by_bucket_owner ON files (bucket_id, owner_id, sequence);
CREATE INDEX IF NOT EXISTS files_by_name ON files (bucket_id, filename, sequence);
CREATE INDEX IF NOT EXISTS files_by_due ON files (due_at_ms, sequence DESC) WHERE due_at_ms IS NOT NULL;
CREATE INDEX IF NOT EXISTS files_by_blob ON files (blob_sha256);

-- The folders of files that are in one: a file at the top of its bucket has no row (coordinator/machine/folders.py).
CREATE TABLE IF NOT EXISTS file_paths (
    sequence   INTEGER PRIMARY KEY REFERENCES files (sequence) ON DELETE CASCADE,
    bucket_id  TEXT NOT NULL,
    owner_id   TEXT NOT NULL,
    path       TEXT NOT NULL                      -- its parts with U+0001 between them
) STRICT;
CREATE INDEX IF NOT EXISTS file_paths_by_bucket ON file_paths (bucket_id, path, sequence);
CREATE INDEX IF NOT EXISTS file_paths_by_owner ON file_paths (bucket_id, owner_id, path, sequence);

CREATE TABLE IF NOT EXISTS project_files (
    sequence             INTEGER PRIMARY KEY,
    file_uuid            TEXT NOT NULL UNIQUE REFERENCES files (file_uuid) ON DELETE CASCADE,
    owner_id             TEXT NOT NULL,
    project_id           TEXT NOT NULL,
    project_name         TEXT NOT NULL,
    version_tag          TEXT NOT NULL,
    compression          TEXT NOT NULL,
    include_images       INTEGER NOT NULL,
    include_snapshots    INTEGER NOT NULL,
    is_read_only         INTEGER NOT NULL,
    keep_compute_ids     INTEGER NOT NULL,
    reset_mac_addresses  INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS project_files_by_owner ON project_files (owner_id, sequence);
CREATE INDEX IF NOT EXISTS project_files_by_project ON project_files (project_id, sequence);
CREATE INDEX IF NOT EXISTS project_files_by_project_owner ON project_files (project_id, owner_id, sequence);

-- What the archive of a project says of itself: a Manifest as JSON (metadata/model/records.py).
CREATE TABLE IF NOT EXISTS manifests (
    sequence  INTEGER PRIMARY KEY REFERENCES files (sequence) ON DELETE CASCADE,
    document  TEXT NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS vms (
    sequence               INTEGER PRIMARY KEY,
    file_uuid              TEXT NOT NULL UNIQUE REFERENCES files (file_uuid) ON DELETE CASCADE,
    owner_id               TEXT NOT NULL,
    virt_type              TEXT NOT NULL,
    format                 TEXT NOT NULL,
    vcpus                  INTEGER NOT NULL,
    ram_mb                 INTEGER NOT NULL,
    md5                    TEXT NOT NULL DEFAULT '',  -- of the content, '' until it is here
    extra_attributes_json  TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS vms_by_owner ON vms (owner_id, sequence);
CREATE INDEX IF NOT EXISTS vms_by_md5 ON vms (md5, sequence) WHERE md5 <> '';

CREATE TABLE IF NOT EXISTS backups (
    sequence            INTEGER PRIMARY KEY,
    file_uuid           TEXT NOT NULL UNIQUE REFERENCES files (file_uuid) ON DELETE CASCADE,
    owner_id            TEXT NOT NULL,
    backup_type         TEXT NOT NULL,            -- full or incremental
    is_compressed       INTEGER NOT NULL,
    is_encrypted        INTEGER NOT NULL,
    parent_backup_uuid  TEXT NOT NULL,            -- '' or another backup; one that is named is not deleted
    source_node_id      TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS backups_by_owner ON backups (owner_id, sequence);
CREATE INDEX IF NOT EXISTS backups_by_parent ON backups (parent_backup_uuid, sequence)
    WHERE parent_backup_uuid <> '';

-- Who may do what on one file, beside what its bucket grants.
CREATE TABLE IF NOT EXISTS file_permissions (
    sequence       INTEGER PRIMARY KEY,
    permission_id  TEXT NOT NULL UNIQUE,
    file_sequence  INTEGER NOT NULL REFERENCES files (sequence) ON DELETE CASCADE,
    bucket_id      TEXT NOT NULL,                 -- the file's
    principal      TEXT NOT NULL,
    level          INTEGER NOT NULL,
    granted_by     TEXT NOT NULL,
    created_at_ms  INTEGER NOT NULL,
    expires_at_ms  INTEGER,
    UNIQUE (file_sequence, principal, level)
) STRICT;
CREATE INDEX IF NOT EXISTS file_permissions_by_principal
    ON file_permissions (principal, bucket_id, file_sequence);
CREATE INDEX IF NOT EXISTS file_permissions_by_expiry ON file_permissions (expires_at_ms)
    WHERE expires_at_ms IS NOT NULL;

-- Links to a file that need no credential. The secret is not here, only its hash.
CREATE TABLE IF NOT EXISTS public_tokens (
    sequence       INTEGER PRIMARY KEY,
    token_id       TEXT NOT NULL UNIQUE,
    token_sha256   TEXT NOT NULL UNIQUE,
    file_sequence  INTEGER NOT NULL REFERENCES files (sequence) ON DELETE CASCADE,
    created_by     TEXT NOT NULL,
    created_at_ms  INTEGER NOT NULL,
    expires_at_ms  INTEGER NOT NULL,
    revoked        INTEGER NOT NULL               -- 1: gone, whatever the time
) STRICT;
CREATE INDEX IF NOT EXISTS public_tokens_by_file ON public_tokens (file_sequence, sequence);
CREATE INDEX IF NOT EXISTS public_tokens_by_creator ON public_tokens (created_by, sequence);
CREATE INDEX IF NOT EXISTS public_tokens_by_expiry ON public_tokens (expires_at_ms);

CREATE TABLE IF NOT EXISTS job_runs (
    sequence         INTEGER PRIMARY KEY,
    run_id           TEXT NOT NULL UNIQUE,
    job_name         TEXT NOT NULL,
    node_id          TEXT NOT NULL,               -- the coordinator that works on it
    invoked_by       TEXT NOT NULL,
    started_at_ms    INTEGER NOT NULL,
    completed_at_ms  INTEGER,
    status           TEXT NOT NULL,               -- running, completed, failed
    parameters       TEXT NOT NULL,               -- a JSON object
    result           TEXT NOT NULL                -- JSON: what was done so far
) STRICT;
CREATE INDEX IF NOT EXISTS job_runs_by_job ON job_runs (job_name, sequence);
CREATE UNIQUE INDEX IF NOT EXISTS job_runs_running ON job_runs (job_name) WHERE status = 'running';

-- One row for an upload that has not ended. The first of `placement` takes the bytes.
CREATE TABLE IF NOT EXISTS uploads (
    file_uuid      TEXT PRIMARY KEY REFERENCES files (file_uuid) ON DELETE CASCADE,
    placement      TEXT NOT NULL,                 -- JSON array of node ids
    offset_bytes   INTEGER NOT NULL,              -- durable on the write quorum: all that clients were told
    expires_at_ms  INTEGER NOT NULL,
    epoch          INTEGER NOT NULL DEFAULT 0,    -- rises when another node takes over, and when bytes are dropped
    prefix_sha256  TEXT NOT NULL DEFAULT '',      -- of the bytes up to the offset; '' at the start
    reserved_bytes INTEGER                        -- of its bucket's quota
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS uploads_by_expiry ON uploads (expires_at_ms);

-- A table of its own: a column of `uploads` would be hashed by the version before this one, when that is put back.
CREATE TABLE IF NOT EXISTS parts (                 -- partial uploads that became parts of a file
    file_uuid TEXT PRIMARY KEY REFERENCES uploads (file_uuid) ON DELETE CASCADE,
    part_of   TEXT NOT NULL                       -- the file_uuid of that file
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS parts_by_final ON parts (part_of);

CREATE TABLE IF NOT EXISTS concatenations (        -- files that were put together from partial uploads
    sequence  INTEGER PRIMARY KEY REFERENCES files (sequence) ON DELETE CASCADE,
    parts     TEXT NOT NULL                       -- JSON array of the file_uuids of these, in their order
) STRICT;

CREATE TABLE IF NOT EXISTS blobs (
    sha256          TEXT PRIMARY KEY,
    size_bytes      INTEGER NOT NULL,
    reference_count INTEGER NOT NULL,
    released_at_ms  INTEGER,                      -- when the last reference went; NULL while referred to
    collected_at    INTEGER,                      -- log index of the Collect that doomed it; NULL otherwise
    -- Replicas that it lacks to those wanted; one more than those when nobody holds it; 0 without references.
    missing         INTEGER NOT NULL DEFAULT 0,
    released_by     TEXT NOT NULL DEFAULT ''     -- bucket of the last file that referred to it; '' while one does
) STRICT;
CREATE INDEX IF NOT EXISTS blobs_by_release ON blobs (released_at_ms, sha256)
    WHERE released_at_ms IS NOT NULL AND collected_at IS NULL;
CREATE INDEX IF NOT EXISTS blobs_by_bucket ON blobs (released_by, released_at_ms, sha256)
    WHERE released_by <> '' AND collected_at IS NULL;
CREATE INDEX IF NOT EXISTS blobs_by_missing ON blobs (missing, sha256) WHERE missing > 0;

-- Of the blobs that files refer to: maintained, since counting would read all of them.
CREATE TABLE IF NOT EXISTS blob_totals (
    one    INTEGER PRIMARY KEY CHECK (one = 1),
    blobs  INTEGER NOT NULL,
    bytes  INTEGER NOT NULL                       -- each content once
) STRICT;

CREATE TABLE IF NOT EXISTS blob_replicas (
    sha256     TEXT NOT NULL REFERENCES blobs (sha256) ON DELETE CASCADE,
    node_id    TEXT NOT NULL,
    doomed_at  INTEGER,                           -- log index of the word to delete it; NULL: it is to be kept
    PRIMARY KEY (sha256, node_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS blob_replicas_by_node ON blob_replicas (node_id);
CREATE INDEX IF NOT EXISTS blob_replicas_doomed ON blob_replicas (node_id, sha256) WHERE doomed_at IS NOT NULL;

-- How many replicas each node has in `blob_replicas`, by the triggers at the end: whatever changes that table, and whichever
-- version of the program does. Counting would read all of them. No row for a node without any.
CREATE TABLE IF NOT EXISTS replica_totals (
    node_id   TEXT PRIMARY KEY,
    replicas  INTEGER NOT NULL,
    doomed    INTEGER NOT NULL                    -- of these
) STRICT, WITHOUT ROWID;

-- Copies that their nodes have put aside as damaged, and keep: they count for nothing, and some of their bytes are sound.
CREATE TABLE IF NOT EXISTS damaged_copies (
    sha256   TEXT NOT NULL REFERENCES blobs (sha256) ON DELETE CASCADE,
    node_id  TEXT NOT NULL,
    spans    TEXT NOT NULL,                       -- JSON array of [first, stop]: bytes that are known to be wrong there
    PRIMARY KEY (sha256, node_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS damaged_copies_by_node ON damaged_copies (node_id);

-- Blobs that no node holds whole and of which there are damaged copies: maintained with `blobs.missing`.
CREATE TABLE IF NOT EXISTS damaged_blobs (
    sha256      TEXT PRIMARY KEY REFERENCES blobs (sha256) ON DELETE CASCADE,
    gone        TEXT NOT NULL,                    -- as `spans`: bytes that are known to be wrong in every copy
    gone_bytes  INTEGER NOT NULL                  -- their number; 0: the blob can be made whole, as far as is known
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS damaged_blobs_by_gone ON damaged_blobs (gone_bytes > 0, sha256);

-- Replicas that are gone, and since which log index: a completion that looked at them before is refused.
CREATE TABLE IF NOT EXISTS burials (
    sha256     TEXT NOT NULL,
    node_id    TEXT NOT NULL,
    log_index  INTEGER NOT NULL,
    at_ms      INTEGER NOT NULL,
    PRIMARY KEY (sha256, node_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS burials_by_age ON burials (at_ms, log_index);

-- Deleted files that can be restored: out of `files`, so that no reader finds them, with their reference to the blob.
CREATE TABLE IF NOT EXISTS trash (
    sequence            INTEGER PRIMARY KEY,      -- log index of the deletion: a backup comes before its parent
    file_uuid           TEXT NOT NULL UNIQUE,
    kind                TEXT NOT NULL,
    bucket_id           TEXT NOT NULL,            -- which may be gone
    owner_id            TEXT NOT NULL,            -- who may be gone
    filename            TEXT NOT NULL,
    path                TEXT NOT NULL,            -- its folder, as people write it
    size_bytes          INTEGER NOT NULL,
    blob_sha256         TEXT NOT NULL REFERENCES blobs (sha256),
    parent_backup_uuid  TEXT NOT NULL,
    deleted_by          TEXT NOT NULL,
    deleted_at_ms       INTEGER NOT NULL,
    due_at_ms           INTEGER NOT NULL,         -- when it goes for good
    document            TEXT NOT NULL             -- its rows, as JSON (coordinator/machine/execution/kept_rows.py)
) STRICT;
CREATE INDEX IF NOT EXISTS trash_by_bucket ON trash (bucket_id, sequence);
CREATE INDEX IF NOT EXISTS trash_by_owner ON trash (owner_id, sequence);
CREATE INDEX IF NOT EXISTS trash_by_due ON trash (due_at_ms, sequence);
CREATE INDEX IF NOT EXISTS trash_by_blob ON trash (blob_sha256);
CREATE INDEX IF NOT EXISTS trash_by_parent ON trash (parent_backup_uuid) WHERE parent_backup_uuid <> '';

CREATE TABLE IF NOT EXISTS trash_totals (         -- by the triggers at the end; no row for a bucket without any
    bucket_id  TEXT PRIMARY KEY,                  -- '' for the whole cluster
    files      INTEGER NOT NULL,
    bytes      INTEGER NOT NULL                   -- each file counted separately
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS bucket_safety (        -- of buckets that differ from the default
    bucket_id     TEXT PRIMARY KEY REFERENCES buckets (bucket_id) ON DELETE CASCADE,
    trash_days    INTEGER,                        -- NULL: as the cluster has it
    protect_days  INTEGER NOT NULL                -- of each new file; 0 for none
) STRICT, WITHOUT ROWID;

-- Content that was deleted for good on purpose: it leaves the disks long before gc's grace is over.
CREATE TABLE IF NOT EXISTS purged_blobs (
    sha256  TEXT PRIMARY KEY REFERENCES blobs (sha256) ON DELETE CASCADE,
    at_ms   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS purged_blobs_by_age ON purged_blobs (at_ms, sha256);

-- Copies of this state, and how long the content that each refers to stays (coordinator/machine/snapshots.py).
CREATE TABLE IF NOT EXISTS kept_snapshots (
    sequence        INTEGER PRIMARY KEY,          -- log index of its beginning
    snapshot_id     TEXT NOT NULL,                -- name of the file; '' while it is made, and if that has failed
    coordinator_id  TEXT NOT NULL, taken_at_ms INTEGER NOT NULL,  -- who has the file
    log_index       INTEGER,                      -- last entry in it; NULL while it is made
    hold TEXT NOT NULL, held_until_ms INTEGER NOT NULL,  -- held, expired, evicted; until never after a newer one's
    size_bytes INTEGER NOT NULL, files INTEGER NOT NULL, sent_to TEXT NOT NULL,
    held_blobs INTEGER NOT NULL, held_bytes INTEGER NOT NULL  -- of its rows in held_blobs
) STRICT;
-- Content of deleted files that a kept snapshot refers to. A row counts as a reference to the blob.
CREATE TABLE IF NOT EXISTS held_blobs (
    sha256      TEXT PRIMARY KEY REFERENCES blobs (sha256) ON DELETE CASCADE,
    snapshot    INTEGER NOT NULL, size_bytes INTEGER NOT NULL  -- sequence of the newest that refers to it
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS held_blobs_by_snapshot ON held_blobs (snapshot, sha256);

-- A file with a row is not deleted. Only Expire ends it, by the time that no wrong clock moves ahead.
CREATE TABLE IF NOT EXISTS protected_files (
    sequence  INTEGER PRIMARY KEY REFERENCES files (sequence) ON DELETE CASCADE,
    until_ms  INTEGER NOT NULL                    -- 0: not protected, whatever its bucket says
) STRICT;
CREATE INDEX IF NOT EXISTS protected_files_by_end ON protected_files (until_ms, sequence);

-- Behind all indexes, where VACUUM puts them: the same state is the same text.
CREATE TRIGGER IF NOT EXISTS replica_added AFTER INSERT ON blob_replicas BEGIN
    INSERT OR IGNORE INTO replica_totals (node_id, replicas, doomed) VALUES (NEW.node_id, 0, 0);
    UPDATE replica_totals SET replicas = replicas + 1, doomed = doomed + (NEW.doomed_at IS NOT NULL)
        WHERE node_id = NEW.node_id;
END;
CREATE TRIGGER IF NOT EXISTS replica_doomed AFTER UPDATE OF doomed_at ON blob_replicas BEGIN
    UPDATE replica_totals SET doomed = doomed + (NEW.doomed_at IS NOT NULL) - (OLD.doomed_at IS NOT NULL)
        WHERE node_id = NEW.node_id;
END;
CREATE TRIGGER IF NOT EXISTS replica_gone AFTER DELETE ON blob_replicas BEGIN
    UPDATE replica_totals SET replicas = replicas - 1, doomed = doomed - (OLD.doomed_at IS NOT NULL)
        WHERE node_id = OLD.node_id;
    DELETE FROM replica_totals WHERE node_id = OLD.node_id AND replicas = 0;
END;
CREATE TRIGGER IF NOT EXISTS trash_added AFTER INSERT ON trash BEGIN
    INSERT INTO trash_totals (bucket_id, files, bytes)
        VALUES ('', 1, NEW.size_bytes), (NEW.bucket_id, 1, NEW.size_bytes)
        ON CONFLICT (bucket_id) DO UPDATE SET files = files + 1, bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER IF NOT EXISTS trash_gone AFTER DELETE ON trash BEGIN
    UPDATE trash_totals SET files = files - 1, bytes = bytes - OLD.size_bytes
        WHERE bucket_id IN ('', OLD.bucket_id);
    DELETE FROM trash_totals WHERE bucket_id IN ('', OLD.bucket_id) AND files = 0;
END;
