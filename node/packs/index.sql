-- What packs hold, for finding it: made anew from the packs wherever it is missing or damaged.

-- live_bytes: of records that count, heads included; indexed_bytes: how far the pack was read into here.
CREATE TABLE IF NOT EXISTS packs (
    number INTEGER PRIMARY KEY,
    is_sealed INTEGER NOT NULL,
    indexed_bytes INTEGER NOT NULL,
    live_bytes INTEGER NOT NULL
);

-- A blob may lie in two packs while one of them is being rewritten.
CREATE TABLE IF NOT EXISTS blobs (
    sha256 BLOB NOT NULL,
    pack INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    length INTEGER NOT NULL,
    digest BLOB NOT NULL,
    PRIMARY KEY (sha256, pack, offset)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS blobs_by_pack ON blobs (pack, offset);

-- Records that say of a blob in the pack `target` that it counts no more: needed as long as that pack is there.
CREATE TABLE IF NOT EXISTS removals (
    pack INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    target INTEGER NOT NULL,
    target_offset INTEGER NOT NULL,
    sha256 BLOB NOT NULL,
    PRIMARY KEY (pack, offset)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS removals_by_target ON removals (target);
