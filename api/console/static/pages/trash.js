// Deleted files: until when they can be restored, and to delete them for good.
import { html } from "../html.js";
import * as api from "../api.js";
import { counted, size } from "../format.js";
import { path, uuid } from "../path.js";
import { isAdmin } from "../session.js";
import { confirm, inTurn } from "../ui/dialog.js";
import { DataTable } from "../ui/table.js";
import { Action, Empty, Heading, Name, Size, Time } from "../ui/parts.js";
import { notify } from "../ui/toast.js";

const trashed = (file) => path`trash/${uuid(file.file_uuid)}`;
const shown = (file) => (file.path ? `${file.path}/${file.filename}` : file.filename);

// Restores files one after the other: what others build on comes first, as it was deleted last.
async function restoreAll(files) {
  const back = new Set();
  const failed = [];
  for (const file of [...files].reverse()) {
    if (back.has(file.file_uuid)) continue;
    try {
      const { parents } = await api.post(path`${trashed(file)}/restore`);
      for (const id of [file.file_uuid, ...parents]) back.add(id);
    } catch (error) {
      failed.push(`${file.filename}: ${error.message}`);
    }
  }
  if (back.size > 0) notify(`${counted(back.size, "file is", "files are")} restored.`, failed.length > 0 ? "warn" : "good");
  for (const message of failed.slice(0, 3)) notify(message, "bad");
  return back.size > 0;
}

// Deletes for good after asking, in the order of the list: a backup before what it builds on.
async function purgeAll(files) {
  let gone = 0;
  await confirm({
    title: files.length === 1 ? "Delete this file for good?" : `Delete ${files.length.toLocaleString("en")} files for good?`,
    names: files.map(shown),
    text: `This cannot be undone. ${size(files.reduce((sum, file) => sum + file.size_bytes, 0))} leave the disks within 15 minutes.`,
    action: "Delete for good",
    run: (work) => inTurn(files, async (file) => {
      await api.del(trashed(file)).catch((error) => {
        if (error.status !== 404) throw error;
      });
      gone += 1;
    }, work),
  });
  if (gone > 0) notify(`${counted(gone, "file is", "files are")} deleted for good.`, "good");
  return gone > 0;
}

export default function Trash() {
  const list = api.useList(path`trash`, "files");
  const after = async (done, clear) => {
    if (!(await done)) return;
    await list.refresh();
    clear?.();
  };
  const columns = [
    { key: "filename", title: "Name", render: (f) => html`<${Name} title=${shown(f)}>${f.filename}</${Name}>` },
    { key: "kind", title: "Kind", width: "5.5rem", hide: "narrow" },
    { key: "size_bytes", title: "Size", width: "6.5rem", hide: "narrow", align: "end", render: (f) => html`<${Size} bytes=${f.size_bytes} />` },
    isAdmin() && { key: "owner_id", title: "Owner", width: "8rem", hide: "medium", render: (f) => html`<${Name}>${f.owner_id}</${Name}>` },
    { key: "deleted_by", title: "Deleted by", width: "8rem", hide: "medium", render: (f) => html`<${Name}>${f.deleted_by}</${Name}>` },
    { key: "deleted_at", title: "Deleted", width: "8rem", hide: "narrow", render: (f) => html`<${Time} at=${f.deleted_at} />` },
    { key: "expires_at", title: "Ends", width: "8rem", small: "5.6rem", render: (f) => html`<${Time} at=${f.expires_at} />` },
    { key: "restore", sortable: false, width: "6.5rem", small: "6rem", align: "end", render: (f) =>
      html`<${Action} label="Restore ${f.filename}" run=${() => after(restoreAll([f]))}>Restore</${Action}>` },
  ].filter(Boolean);
  return html`<${Heading} title="Trash" sub="Deleted files. Each is the same again once it is restored, but its public links stay ended." />
    <${DataTable} label="Trash" noun="file" rows=${list.rows} keyOf=${(f) => f.file_uuid} nameOf=${(f) => f.filename} columns=${columns}
      sort=${{ key: "deleted_at", down: true }} search=${{ label: "Search by name, owner or folder", text: (f) => `${shown(f)} ${f.owner_id} ${f.deleted_by}` }}
      actions=${(marked, clear) => html`<${Action} tone="primary" run=${() => after(restoreAll(inOrder(marked)), clear)}>Restore</${Action}>
        <${Action} tone="danger" run=${() => after(purgeAll(inOrder(marked)), clear)}>Delete for good…</${Action}>`}
      isLoading=${list.isLoading} error=${list.error} refresh=${list.refresh}
      empty=${html`<${Empty} title="The trash is empty.">Deleted files stay here for some days: <a href="#/help/undo">how long, and what ends earlier</a>.
        ${isAdmin() && html`Older ones may be in a <a href="#/snapshots">snapshot</a>.`}</${Empty}>`} />`;
}

// The order of their deletion.
const inOrder = (files) => [...files].sort((a, b) => (a.deleted_at < b.deleted_at ? -1 : 1));
