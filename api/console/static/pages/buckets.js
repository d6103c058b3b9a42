// Buckets: folders with an owner, permissions and a quota.
import { html } from "../html.js";
import * as api from "../api.js";
import { address, bucketAt, path } from "../path.js";
import { DEFAULT_BUCKET, useRights } from "../rights.js";
import { go } from "../router.js";
import { confirm, FormDialog, show } from "../ui/dialog.js";
import { DataTable } from "../ui/table.js";
import { Menu } from "../ui/menu.js";
import { Action, Bar, Empty, Heading, Name, Size, Time } from "../ui/parts.js";
import { size } from "../format.js";
import { notify } from "../ui/toast.js";

const GB = 1e9;

// What a bucket holds. `mayRead`: false where the user sees only some of its files, whose sum this is not.
export function Quota({ bucket, mayRead = true }) {
  if (!mayRead) return html`<span class="quiet" title="The totals of a bucket are shown to users who may read all of it.">not shown</span>`;
  if (!bucket.quota_bytes) return html`<span><span class="number">${size(bucket.used_bytes)}</span> <span class="quiet">without a limit</span></span>`;
  const used = bucket.used_bytes + bucket.reserved_bytes;
  const share = used / bucket.quota_bytes;
  return html`<span class="quota"><span class="number">${size(used)} of ${size(bucket.quota_bytes)}</span>
    <${Bar} value=${used} max=${bucket.quota_bytes} label="Used of the quota of ${bucket.name}"
      tone=${share > 0.95 ? "bad" : share > 0.8 ? "warn" : "info"} /></span>`;
}

const STORAGE = [["auto", "cold after a time"], ["hot", "hot: whole files"], ["cold", "cold: chunks that files share"]];

// Makes a bucket, or changes one: the record as it is then.
export function edit(bucket) {
  return show((close) => html`<${FormDialog} title=${bucket ? "Change the bucket" : "New bucket"} close=${close}
    action=${bucket ? "Save" : "Create the bucket"} submit=${({ name, quota, storage }) => {
      const body = { name, quota_bytes: Math.round(Number(quota || 0) * GB) };
      if (bucket && storage !== bucket.storage) body.storage = storage;
      return bucket ? api.patch(bucketAt(bucket.bucket_id), body) : api.post(path`buckets`, body);
    }}>
    <label>Name<input name="name" required maxlength="255" defaultValue=${bucket?.name || ""} autofocus /></label>
    <label>Quota in GB<input name="quota" type="number" min="0" step="any" placeholder="0: no limit"
      defaultValue=${bucket?.quota_bytes ? bucket.quota_bytes / GB : ""} /></label>
    <p class="quiet">Limit for the total size of its files. Lowering it deletes nothing.</p>
    ${bucket && html`<label>Storage<select name="storage">${STORAGE.map(([value, text]) => html`
      <option value=${value} selected=${value === bucket.storage}>${text}</option>`)}</select></label>`}</${FormDialog}>`);
}

export async function removeBucket(bucket) {
  let isGone = false;
  await confirm({ title: "Delete this bucket?", names: [bucket.name], action: "Delete",
    text: "Every permission on it is deleted too. A bucket that contains files cannot be deleted.",
    run: async () => {
      await api.del(bucketAt(bucket.bucket_id));
      isGone = true;
    } });
  if (isGone) notify("The bucket is deleted.", "good");
  return isGone;
}

export default function Buckets() {
  const list = api.useList(path`buckets`, "buckets");
  const { mayOnBucket } = useRights();
  const columns = [
    { key: "name", title: "Name", render: (b) => html`<a href=${address`/buckets/${b.bucket_id}`}><${Name}>${b.name}</${Name}></a>` },
    { key: "file_count", title: "Files", width: "5.5rem", small: "4.2rem", align: "end", render: (b) => mayOnBucket(b, "read") ? b.file_count.toLocaleString("en") : "" },
    { key: "used_bytes", title: "Used", width: "15rem", hide: "narrow", render: (b) => html`<${Quota} bucket=${b} mayRead=${mayOnBucket(b, "read")} />` },
    { key: "owner_id", title: "Owner", width: "8rem", hide: "medium", render: (b) => html`<${Name}>${b.owner_id}</${Name}>` },
    { key: "created_at", title: "Created", width: "8rem", hide: "medium", render: (b) => html`<${Time} at=${b.created_at} />` },
    { key: "menu", sortable: false, width: "3.2rem", small: "2.3rem", align: "end", render: (b) => html`<${Menu} label="Actions for ${b.name}" items=${[
      { text: "Show", run: () => go(address`/buckets/${b.bucket_id}`) },
      mayOnBucket(b, "admin") && { text: "Change…", run: async () => (await edit(b)) && list.refresh() },
      mayOnBucket(b, "admin") && b.bucket_id !== DEFAULT_BUCKET && { text: "Delete…", tone: "bad", run: async () => (await removeBucket(b)) && list.refresh() },
    ]} />` },
  ];
  return html`<${Heading} title="Buckets" sub="Folders with an owner, permissions and a quota.">
      <${Action} tone="primary" run=${async () => (await edit()) && list.refresh()}>New bucket…</${Action}></${Heading}>
    <${DataTable} label="Buckets" noun="bucket" rows=${list.rows} keyOf=${(b) => b.bucket_id} columns=${columns}
      search=${{ label: "Search by name or owner", text: (b) => `${b.name} ${b.owner_id}` }} sort=${{ key: "name", down: false }}
      isLoading=${list.isLoading} error=${list.error} refresh=${list.refresh}
      empty=${html`<${Empty} title="No buckets.">Create one to share many files at once.</${Empty}>`} />`;
}
