// One bucket: a folder of it with its files of every kind, and who may do what there.
import { html, useLayoutEffect, useMemo, useRef, useState } from "../html.js";
import * as api from "../api.js";
import { download, downloadAll, fileAddress, KINDS, rename, STATUSES } from "../files.js";
import { moveAll, removeAll, renameFolder } from "../folders/actions.js";
import { Breadcrumb, folderAddress, Titled, upOf, useFolder } from "../folders/listing.js";
import { below, joined, nameOf, parentOf } from "../folders/paths.js";
import { downloadZip } from "../folders/zip-dialog.js";
import { bucketAt } from "../path.js";
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
  { key: "kind", title: "Kind", width: "5.5rem", hide: "narrow" },
  { key: "size_bytes", title: "Size", width: "6.5rem", small: "5.8rem", align: "end", render: (f) => !f.isFolder && html`<${Size} bytes=${f.size_bytes} />` },
  { key: "status", title: "State", width: "7.5rem", hide: "narrow", render: (f) => !f.isFolder && html`<${Badge} state=${f.status} />` },
  { key: "content_type", title: "Type", width: "12rem", hide: "medium" },
  { key: "created_at", title: "Created", width: "8rem", hide: "narrow", render: (f) => !f.isFolder && html`<${Time} at=${f.created_at} />` },
];
const FILTERS = [
  { key: "kind", title: "Kind", options: Object.keys(KINDS).map((each) => [each, each]), accept: (f, value) => f.kind === value },
  { key: "status", title: "State", options: STATUSES, accept: (f, value) => f.status === value },
];

export default function Bucket({ params, query }) {
  const own = bucketAt(params.uuid);
  const folder = joined(query.folder || "");
  const { data: bucket, error, refresh } = api.usePolled((signal) => api.getOne(own, "bucket_id", params.uuid, { signal }), [params.uuid], { everyMs: 15_000 });
  const rights = useRights();
  useShown(folder);
  if (error && !bucket) return html`<${Heading} title="Bucket" /><${ErrorBox} error=${error} retry=${refresh} />`;
  if (!bucket) return html`<${Heading} title="Bucket" /><${Loading} lines=${6} />`;
  const mayAll = rights.mayOnBucket(bucket, "admin");
  const mayUpload = rights.mayUploadTo(bucket);
  return html`<${Heading} title=${bucket.name} name=${folder ? `${nameOf(folder)} · ${bucket.name}` : bucket.name} sub=${!folder && "A bucket and its files."}>
      ${mayUpload && servesContent && html`<${ChooseFiles} bucket=${bucket.bucket_id} folder=${folder} />`}
      ${mayAll && html`<${Menu} label="More for this bucket" text="More ▾" items=${[
        { text: "Change name or quota…", run: async () => (await edit(bucket)) && refresh() },
        bucket.bucket_id !== DEFAULT_BUCKET && { text: "Delete…", tone: "bad", run: async () => (await removeBucket(bucket)) && go("/buckets") },
      ]} />`}</${Heading}>
    ${folder ? html`<${Breadcrumb} bucket=${bucket} folder=${folder} />` : html`<${Card} title="About"><${Facts} rows=${[
      ["Owner", html`<${Name}>${bucket.owner_id}</${Name}>`],
      ["Used", html`<${Quota} bucket=${bucket} mayRead=${rights.mayOnBucket(bucket, "read")} />`],
      ["Created", html`<${Time} at=${bucket.created_at} />`],
      ["Id", html`<code>${bucket.bucket_id}</code>`],
    ]} /></${Card}>`}
    <${Card} title=${folder ? "Folders and files" : "Files"}><${Files} bucket=${bucket} folder=${folder} query=${query} rights=${rights} /></${Card}>
    ${mayAll && !folder && html`<${Card} title="Who has access"><${Grants} on=${own} of="this bucket and every file in it" /></${Card}>`}`;
}

// Another folder is shown from its beginning, and the heading has the focus, as on another page.
function useShown(folder) {
  const shown = useRef(folder);
  useLayoutEffect(() => {
    if (shown.current === folder) return;
    shown.current = folder;
    document.querySelector("main h1")?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }, [folder]);
}

// Each visit of an address has a list of its own: what was searched for and selected before is not taken along.
function Files(props) {
  const visits = useRef(0);
  const visit = useMemo(() => (visits.current += 1), [props.query]);
  return html`<${FolderList} key=${visit} ...${props} />`;
}

function FolderList({ bucket, folder, query, rights }) {
  const id = bucket.bucket_id;
  const mayUpload = rights.mayUploadTo(bucket);
  // What is in a folder is not known: who may upload is offered to change it, and told what is refused.
  const may = (f, level) => (f.isFolder ? mayUpload : rights.mayOnFile({ ...f, bucket_id: id }, level));
  const [text, setText] = useState(query.q || "");
  const isSearched = Boolean(text.trim());
  const list = useFolder(id, folder, isSearched);
  const after = async (asking, clear) => {
    if (!(await asking)) return;
    await list.refresh();
    clear?.();
  };
  const columns = [nameColumn(id, folder, list.isFlat || isSearched), ...COLUMNS, menuColumn({ id, folder, may, after })];
  return html`${list.isFlat && !list.error && folder && html`<p class="banner warn">Folders cannot be listed now: these are all files of the bucket.</p>`}
    ${list.isCut && html`<p class="banner">Not all are shown: there are too many here for one page.</p>`}
    <${DataTable} label="Files of this bucket" noun=${isSearched || list.isFlat ? "file" : "item"} rows=${list.rows} keyOf=${(f) => f.key}
      nameOf=${(f) => f.filename} columns=${columns} sort=${{ key: "filename", down: false }} isFirst=${(f) => f.isFolder}
      search=${{ label: folder ? "Search in this folder and below" : "Search by name", text: (f) => joined(below(f.path || "", list.isFlat ? "" : folder), f.isFolder ? "" : f.filename), onText: setText }}
      isLoading=${list.isLoading} error=${list.error} refresh=${list.refresh} filters=${FILTERS}
      actions=${(marked, clear) => html`${marked.every((f) => !f.isFolder) && html`<${Action} run=${() => downloadAll(marked.filter((f) => f.status === "available"))}>Download</${Action}>`}
        ${servesContent && html`<${Action} run=${() => downloadZip(id, marked, folder, marked.length === 1 ? marked[0].filename : nameOf(folder) || bucket.name)}>Download as a zip…</${Action}>`}
        ${marked.every((f) => may(f, "write")) && html`<${Action} run=${() => after(moveAll(id, marked, folder), clear)}>Move…</${Action}>`}
        ${marked.every((f) => may(f, "admin")) && html`<${Action} tone="danger" run=${() => after(removeAll(id, marked), clear)}>Delete…</${Action}>`}`}
      empty=${folder
        ? html`<${Empty} title="No files here.">A folder exists while a file is in it or below it. <a href=${upOf(id, folder)}>Go up</a></${Empty}>`
        : html`<${Empty} title="No files here.">${mayUpload ? "Drop some anywhere on this page." : "You may read this bucket, but not upload to it."}</${Empty}>`} />`;
}

const nameColumn = (id, folder, isFlat) => ({
  key: "filename",
  title: "Name",
  render: (f) => f.isFolder
    ? html`<${Titled} icon="folder" href=${folderAddress(id, f.path)} name=${f.filename} />`
    : html`<${Titled} icon="file" href=${fileAddress(f)} name=${f.filename} bucketId=${id} folder=${isFlat && f.path !== folder ? f.path : ""} />`,
});

const menuColumn = ({ id, folder, may, after }) => ({
  key: "menu",
  sortable: false,
  align: "end",
  width: "3.2rem",
  small: "2.3rem",
  render: (f) => html`<${Menu} label="Actions for ${f.filename}" items=${f.isFolder ? [
    { text: "Open", run: () => go(folderAddress(id, f.path)) },
    servesContent && { text: "Download as a zip…", run: () => downloadZip(id, [f], parentOf(f.path), f.filename) },
    may(f, "write") && { text: "Rename…", run: () => after(renameFolder(id, f)) },
    may(f, "write") && { text: "Move to a folder…", run: () => after(moveAll(id, [f], folder)) },
    may(f, "admin") && { text: "Delete…", tone: "bad", run: () => after(removeAll(id, [f])) },
  ] : [
    f.status === "available" && { text: "Download", run: () => download(f) },
    { text: "Show", run: () => go(fileAddress(f)) },
    may(f, "write") && { text: "Rename…", run: () => after(rename({ ...f, bucket_id: id }, f.kind)) },
    may(f, "write") && { text: "Move to a folder…", run: () => after(moveAll(id, [f], f.path || "")) },
    may(f, "admin") && { text: "Delete…", tone: "bad", run: () => after(removeAll(id, [f])) },
  ]} />`,
});
