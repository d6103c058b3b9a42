// What somebody may do in a bucket, as far as roles, owners and permissions tell; the API decides.
import { useEffect, useState } from "../html.js";
import * as api from "../api.js";
import { now } from "../clock.js";
import { path } from "../path.js";
import { isAdmin, session } from "../session.js";

const DEFAULT_BUCKET = "00000000-0000-0000-0000-000000000000";
const LEVELS = ["read", "write", "admin"];

// The permissions that the user, its groups and roles have, and that have not ended.
async function received(signal) {
  const { user_id: me, groups, roles } = session.get().user;
  const held = { user: [me], group: groups, role: roles };
  const { rows } = await api.list(path`permissions`, "permissions", { signal });
  return rows.filter((each) => held[each.principal_type].includes(each.principal_id)
    && (!each.expires_at || new Date(each.expires_at) > now()));
}

const highest = (entries) => LEVELS.findLast((level) => entries.some((each) => each.permission === level)) || "";

// { level, ofFile(file_uuid), isOwn }: the level on a bucket, "" for none, and those on single files of it.
export async function rightsIn(bucket, signal) {
  const isOwn = isAdmin() || (bucket.bucket_id !== DEFAULT_BUCKET && bucket.owner_id === session.get().user.user_id);
  if (isOwn) return { level: "admin", ofFile: () => "admin" };
  const entries = (await received(signal)).filter((each) => each.bucket_id === bucket.bucket_id);
  const level = highest(entries.filter((each) => each.target === "bucket"));
  return { level, ofFile: (id) => highest(entries.filter((each) => each.target === "bucket" || each.file_uuid === id)) };
}

// Whether files may be put into a bucket and changed there: everybody may in the default bucket. True until it is known.
export function useMayWrite(bucket) {
  const [mayWrite, setMayWrite] = useState(true);
  const id = bucket?.bucket_id;
  useEffect(() => {
    if (!id || id === DEFAULT_BUCKET) return undefined;
    const asking = new AbortController();
    rightsIn(bucket, asking.signal).then(({ level }) => setMayWrite(level !== "read"), () => {});
    return () => asking.abort();
  }, [id]);
  return mayWrite;
}
