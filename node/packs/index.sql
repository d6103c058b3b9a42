-- What packs hold, for finding it: made anew from the packs wherever it is missing or damaged.

-- live_bytes: of the live_blobs records that count, heads included; indexed_bytes: how far the pack was read into
-- here.
CREATE TABLE IF NOT EXISTS packs (
    number INTEGER PRIMARY KEY,
    is_sealed INTEGER NOT NULL,
    indexed_bytes INTEGER NOT NULL,
    live_bytes INTEGER NOT NULL,
    live_blobs INTEGER NOT NULL
);

-- A blob may lie in two packs while one of them is being rewritten. affirmed_at_ns: when it came, or somebody was
-- told last that it is here, since the epoch.
CREATE TABLE IF NOT EXISTS blobs (
    sha256 BLOB NOT NULL,
    pack INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    length INTEGER NOT NULL,
    digest BLOB NOT NULL,
    affirmed_at_ns INTEGER NOT NULL,
    PRIMARY KEY (sha256, pack, offset)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS blobs_by_pack ON blobs (pack, offset);

-- Records that count no more: their blob was removed, or a newer record has taken their place.
CREATE TABLE IF NOT EXISTS dead (
    pack INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    sha256 BLOB NOT NULL,
    PRIMARY KEY (pack, offset)
) WITHOUT ROWID;

-- Packs that must be rewritten soon: a blob in them was deleted for good on purpose.
CREATE TABLE IF NOT EXISTS purged (
    pack INTEGER PRIMARY KEY
);

-- Blobs that came and that the log has not been seen to know since (node/storage/unclaimed.py).
CREATE TABLE IF NOT EXISTS unclaimed (
    sha256 BLOB PRIMARY KEY,
    at_ns INTEGER NOT NULL
) WITHOUT ROWID;
