// The files in a snapshot, as they were then, and bringing them back as new files.
import { html, useState } from "../html.js";
import * as api from "../api.js";
import { counted, moment } from "../format.js";
import { joined } from "../folders/paths.js";
import { path, uuid } from "../path.js";
import { FormDialog, inTurn, show } from "../ui/dialog.js";
import { Cut } from "../ui/file-list.js";
import { DataTable } from "../ui/table.js";
import { Action, Empty, Heading, Name, Size, Time } from "../ui/parts.js";
import { notify } from "../ui/toast.js";
import { WORDS } from "./snapshots.js";

const NAMES_SHOWN = 8;
const FILES_MS = 60_000; // they never change
const shown = (file) => joined(file.path, file.filename);

// Asks into which bucket, and restores one after the other: a backup after those that it builds on.
async function restoreAll(at, files) {
  const { rows: buckets } = await api.list(path`buckets`, "buckets");
  const inOrder = [...files].sort((a, b) => (a.created_at < b.created_at ? -1 : 1));
  const back = new Map(); // what has come back is not asked for again if a later one fails
  await show((close) => html`<${FormDialog} title=${files.length === 1 ? "Restore this file?" : `Restore ${files.length.toLocaleString("en")} files?`} close=${close} action="Restore"
    submit=${(values, work) => inTurn(inOrder.filter((file) => !back.has(file.file_uuid)), async (file) => {
      const body = { bucket_id: values.bucket_id, parent_backup_uuid: back.get(file.parent_backup_uuid) || "" };
      const revived = await api.post(path`${at}/files/${uuid(file.file_uuid)}/restore`, body);
      back.set(file.file_uuid, revived.file_uuid);
    }, work)}>
    <ul class="named">${inOrder.slice(0, NAMES_SHOWN).map((file) => html`<li><${Name}>${shown(file)}</${Name}></li>`)}
      ${files.length > NAMES_SHOWN && html`<li class="quiet">and ${files.length - NAMES_SHOWN} more</li>`}</ul>
    <p>Each becomes a new file with the record and the content of then, also if the old one still exists. It belongs to its owner of then,
      or to you if that user is gone. Permissions and links do not come back.</p>
    <label>Restore to<select name="bucket_id"><option value="">the bucket that it was in</option>
      ${buckets.map((bucket) => html`<option value=${bucket.bucket_id}>${bucket.name}</option>`)}</select></label></${FormDialog}>`);
  if (back.size > 0) notify(`${counted(back.size, "file is", "files are")} restored.`, "good");
  return back.size > 0;
}

export default function Snapshot({ params }) {
  const [beginning, setBeginning] = useState("");
  const at = path`cluster/snapshots/${params.id}`;
  const list = api.useList(path`${at}/files`, "files", { filename: beginning }, { everyMs: FILES_MS });
  const known = api.useList(path`cluster/snapshots`, "snapshots", {}, { everyMs: FILES_MS });
  const snapshot = known.rows.find((each) => each.snapshot_id === params.id);
  const columns = [
    { key: "filename", title: "Name", render: (f) => html`<${Name} title=${shown(f)}>${f.filename}</${Name}>` },
    { key: "kind", title: "Kind", width: "5.5rem", hide: "narrow" },
    { key: "size_bytes", title: "Size", width: "6.5rem", hide: "narrow", align: "end", render: (f) => html`<${Size} bytes=${f.size_bytes} />` },
    { key: "bucket_name", title: "Bucket", width: "9rem", hide: "narrow", render: (f) => html`<${Name}>${f.bucket_name}</${Name}>` },
    { key: "owner_id", title: "Owner", width: "8rem", hide: "medium", render: (f) => html`<${Name}>${f.owner_id}</${Name}>` },
    { key: "created_at", title: "Created", width: "8rem", hide: "medium", render: (f) => html`<${Time} at=${f.created_at} />` },
    { key: "restore", sortable: false, width: "7rem", small: "6.4rem", align: "end", render: (f) =>
      html`<${Action} label="Restore ${f.filename}…" run=${() => restoreAll(at, [f])}>Restore…</${Action}>` },
  ];
  return html`<${Heading} title=${snapshot ? `Snapshot of ${moment(snapshot.taken_at)}` : "Snapshot"} sub="Files as they were then.${snapshot ? ` ${WORDS[snapshot.hold]}.` : ""}">
      <a href="#/snapshots" role="button" class="small outline">All snapshots</a></${Heading}>
    ${(list.isCut || beginning) && html`<${Cut} beginning=${beginning} setBeginning=${setBeginning} noun="files" />`}
    <${DataTable} label="Files in the snapshot" noun="file" rows=${list.rows} keyOf=${(f) => f.file_uuid} nameOf=${(f) => f.filename} columns=${columns}
      sort=${{ key: "created_at", down: true }} search=${{ label: "Search by name, folder, bucket or owner", text: (f) => `${shown(f)} ${f.bucket_name} ${f.owner_id} ${f.file_uuid}` }}
      actions=${(marked, clear) => html`<${Action} tone="primary" run=${async () => (await restoreAll(at, marked)) && clear()}>Restore…</${Action}>`}
      isLoading=${list.isLoading} error=${list.error} refresh=${list.refresh}
      empty=${html`<${Empty} title="No such files.">${beginning ? "No file in it has a name that begins like this." : "There were no files when it was taken."}</${Empty}>`} />`;
}
