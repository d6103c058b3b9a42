// One bucket: its files of every kind, and who may do what there.
import { html, useEffect } from "../html.js";
import * as api from "../api.js";
import { downloadAll, fileAddress, KINDS, remove, STATUSES } from "../files.js";
import { bucketAt, path } from "../path.js";
import { servesContent } from "../place.js";
import { DEFAULT_BUCKET, useRights } from "../rights.js";
import { go } from "../router.js";
import { ChooseFiles } from "../uploads/drop.js";
import { Grants } from "../ui/grants.js";
import { DataTable } from "../ui/table.js";
import { Menu } from "../ui/menu.js";
import { Action, Badge, Card, Empty, ErrorBox, Facts, Heading, Loading, Name, Size, Time } from "../ui/parts.js";
import { edit, Quota, removeBucket } from "./buckets.js";

const COLUMNS = [
  { key: "filename", title: "Name", render: (f) => html`<a href=${fileAddress(f)}><${Name}>${f.filename}</${Name}></a>` },
  { key: "kind", title: "Kind", width: "5.5rem", hide: "narrow" },
  { key: "size_bytes", title: "Size", width: "6.5rem", small: "5.4rem", align: "end", render: (f) => html`<${Size} bytes=${f.size_bytes} />` },
  { key: "status", title: "State", width: "7.5rem", hide: "narrow", render: (f) => html`<${Badge} state=${f.status} />` },
  { key: "content_type", title: "Type", width: "12rem", hide: "medium" },
  { key: "created_at", title: "Created", width: "8rem", hide: "narrow", render: (f) => html`<${Time} at=${f.created_at} />` },
];

export default function Bucket({ params }) {
  const own = bucketAt(params.uuid);
  const { data: bucket, error, refresh } = api.usePolled((signal) => api.getOne(own, "bucket_id", params.uuid, { signal }), [params.uuid], { everyMs: 15_000 });
  const files = api.useList(path`${own}/files`, "files");
  const { mayOnBucket, mayOnFile, mayUploadTo } = useRights();
  useEffect(() => {
    addEventListener("filestore:stored", files.refresh);
    return () => removeEventListener("filestore:stored", files.refresh);
  }, []);
  if (error && !bucket) return html`<${Heading} title="Bucket" /><${ErrorBox} error=${error} retry=${refresh} />`;
  if (!bucket) return html`<${Heading} title="Bucket" /><${Loading} lines=${6} />`;
  const mayAll = mayOnBucket(bucket, "admin");
  const mayUpload = mayUploadTo(bucket);
  return html`<${Heading} title=${bucket.name} sub="A bucket and its files.">${servesContent && mayUpload && html`<${ChooseFiles} bucket=${bucket.bucket_id} />`}
      ${mayAll && html`<${Menu} label="More for this bucket" text="More ▾" items=${[
        { text: "Change name or quota…", run: async () => (await edit(bucket)) && refresh() },
        bucket.bucket_id !== DEFAULT_BUCKET && { text: "Delete…", tone: "bad", run: async () => (await removeBucket(bucket)) && go("/buckets") },
      ]} />`}</${Heading}>
    <${Card} title="About"><${Facts} rows=${[
      ["Owner", html`<${Name}>${bucket.owner_id}</${Name}>`],
      ["Used", html`<${Quota} bucket=${bucket} mayRead=${mayOnBucket(bucket, "read")} />`],
      ["Created", html`<${Time} at=${bucket.created_at} />`],
      ["Id", html`<code>${bucket.bucket_id}</code>`],
    ]} /></${Card}>
    <${Card} title="Files"><${DataTable} label="Files of this bucket" noun="file" rows=${files.rows} keyOf=${(f) => f.file_uuid}
      nameOf=${(f) => f.filename} columns=${COLUMNS} sort=${{ key: "created_at", down: true }}
      search=${{ label: "Search by name", text: (f) => f.filename }} isLoading=${files.isLoading} error=${files.error} refresh=${files.refresh}
      filters=${[{ key: "kind", title: "Kind", options: Object.keys(KINDS).map((each) => [each, each]), accept: (f, value) => f.kind === value },
        { key: "status", title: "State", options: STATUSES, accept: (f, value) => f.status === value }]}
      actions=${(marked, clear) => html`<${Action} run=${() => downloadAll(marked.filter((f) => f.status === "available"))}>Download</${Action}>
        ${marked.every((f) => mayOnFile({ ...f, bucket_id: bucket.bucket_id }, "admin")) && html`<${Action} tone="danger" run=${async () => {
          const gone = await remove(marked);
          files.change((rows) => rows.filter((row) => !gone.includes(row.file_uuid)));
          clear();
        }}>Delete…</${Action}>`}`}
      empty=${html`<${Empty} title="No files here.">${mayUpload ? "Drop some anywhere on this page." : "You may read this bucket, but not upload to it."}</${Empty}>`} /></${Card}>
    ${mayAll && html`<${Card} title="Who has access"><${Grants} on=${own} of="this bucket and every file in it" /></${Card}>`}`;
}
