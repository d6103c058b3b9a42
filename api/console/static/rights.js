// What the user may do with files and buckets, computed as the API decides it: so that a page offers only what the API would
// accept. The API alone decides.
import * as api from "./api.js";
import { now } from "./clock.js";
import { path } from "./path.js";
import { isAdmin, session } from "./session.js";

export const DEFAULT_BUCKET = "00000000-0000-0000-0000-000000000000";
const LEVELS = ["", "read", "write", "admin"];
const OWNERS_SHOWN = 5;

export const isOver = (grant) => Boolean(grant.expires_at) && new Date(grant.expires_at) <= now();

// Whether a permission was given to the user, or to a group or role of the user.
export function isReceived(grant) {
  const { user_id: me, groups, roles } = session.get().user;
  return { user: [me], group: groups, role: roles }[grant.principal_type].includes(grant.principal_id);
}

export const isMine = (record) => record.owner_id === session.get().user?.user_id;

// Whose files these are, with how many each has: "otto (2), zoe (1)".
export function ownersOf(files) {
  const counts = new Map();
  for (const { owner_id: owner } of files) counts.set(owner, (counts.get(owner) || 0) + 1);
  const most = [...counts].sort(([, a], [, b]) => b - a);
  const named = most.slice(0, OWNERS_SHOWN).map(([owner, count]) => `${owner || "unknown"} (${count.toLocaleString("en")})`);
  return named.join(", ") + (most.length > OWNERS_SHOWN ? ` and ${most.length - OWNERS_SHOWN} more` : "");
}

let kept = null; // { user, rights }: as another page has loaded them

// { grants, own }: the level by bucket and file that the user was given, and the ids of the user's buckets.
async function load(signal) {
  const [permissions, buckets] = await Promise.all([
    api.list(path`permissions`, "permissions", { signal }),
    api.list(path`buckets`, "buckets", { signal }),
  ]);
  const grants = {};
  for (const grant of permissions.rows.filter((each) => isReceived(each) && !isOver(each))) {
    const on = grant.target === "bucket" ? grant.bucket_id : grant.file_uuid;
    grants[on] = Math.max(grants[on] || 0, LEVELS.indexOf(grant.permission));
  }
  const rights = { grants, own: buckets.rows.filter((each) => isMine(each) && each.bucket_id !== DEFAULT_BUCKET).map((each) => each.bucket_id) };
  kept = { user: session.get().user, rights };
  return rights;
}

// { mayOnFile(file, level), mayOnBucket(bucket, level), mayUploadTo(bucket), isKnown }. Until the permissions are here, only what
// surely may be done is offered; if they cannot be read, everything is.
export function useRights() {
  const { data: loaded, error } = api.usePolled((signal) => (isAdmin() ? {} : load(signal)), [], { everyMs: 30_000 });
  const data = loaded || (kept?.user === session.get().user ? kept.rights : undefined);
  const given = (id) => (error && !data ? LEVELS.length : data?.grants?.[id] || 0);
  const owns = (id) => Boolean(data?.own?.includes(id));
  const mayOnBucket = (bucket, level) => isAdmin() || owns(bucket.bucket_id) || (isMine(bucket) && bucket.bucket_id !== DEFAULT_BUCKET)
    || given(bucket.bucket_id) >= LEVELS.indexOf(level);
  const mayOnFile = (file, level) => isMine(file) || mayOnBucket({ bucket_id: file.bucket_id }, level) || given(file.file_uuid) >= LEVELS.indexOf(level);
  return { mayOnFile, mayOnBucket, mayUploadTo: (bucket) => bucket.bucket_id === DEFAULT_BUCKET || mayOnBucket(bucket, "write"), isKnown: Boolean(data || error) };
}
