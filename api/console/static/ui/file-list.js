// The list of one kind of file: what all three pages have in common. `columns` are those of the kind alone.
import { html, useEffect, useMemo, useState } from "../html.js";
import { ROWS_MAX, useList } from "../api.js";
import { download, downloadAll, fileAddress, KINDS, remove, rename, share, STATUSES } from "../files.js";
import { moveFile } from "../folders/actions.js";
import { Titled } from "../folders/listing.js";
import { joined } from "../folders/paths.js";
import { downloadZip } from "../folders/zip-dialog.js";
import { servesContent } from "../place.js";
import { useRights } from "../rights.js";
import { go } from "../router.js";
import { ChooseFiles } from "../uploads/drop.js";
import { DataTable } from "./table.js";
import { Menu } from "./menu.js";
import { Action, Badge, Empty, Heading, Name, Size, Time } from "./parts.js";

export const nameColumn = {
  key: "filename",
  title: "Name",
  render: (file) => html`<${Titled} href=${fileAddress(file)} name=${file.filename} bucketId=${file.bucket_id} folder=${file.path} />`,
};
export const fileColumns = [
  { key: "size_bytes", title: "Size", align: "end", width: "6.5rem", small: "5.8rem", render: (f) => html`<${Size} bytes=${f.size_bytes} />` },
  { key: "status", title: "State", width: "7.5rem", hide: "narrow", render: (f) => html`<${Badge} state=${f.status} />` },
  { key: "owner_id", title: "Owner", width: "8rem", hide: "medium", render: (f) => html`<${Name}>${f.owner_id}</${Name}>` },
  { key: "created_at", title: "Created", width: "8rem", hide: "narrow", render: (f) => html`<${Time} at=${f.created_at} />` },
];

// How the files of `filestore serve restic` begin: so many that they would bury all others.
export const RESTIC = "restic:";

export function FileList({ kind, columns = [], sub, empty, narrowing = [] }) {
  const { path, field, noun, title } = KINDS[kind];
  const [beginning, setBeginning] = useState("");
  const [showsRestic, setShowsRestic] = useState(false);
  const { mayOnFile } = useRights();
  const list = useList(path, field, { filename: beginning, without_filename: showsRestic ? "" : RESTIC });
  useEffect(() => {
    addEventListener("filestore:stored", list.refresh);
    return () => removeEventListener("filestore:stored", list.refresh);
  }, []);
  const rows = useMemo(() => list.rows.map((row) => ({ ...row, kind })), [list.rows]);
  const dropRows = (ids) => ids.length > 0 && list.change((rows) => rows.filter((row) => !ids.includes(row.file_uuid)));
  const changed = async (asking) => {
    const record = await asking;
    if (record) list.change((rows) => rows.map((row) => (row.file_uuid === record.file_uuid ? record : row)));
  };
  const rowMenu = {
    key: "menu",
    sortable: false,
    align: "end",
    width: "3.2rem",
    small: "2.3rem",
    render: (file) => html`<${Menu} label="Actions for ${file.filename}" items=${[
      file.status === "available" && { text: "Download", run: () => download(file) },
      { text: "Show", run: () => go(fileAddress(file, kind)) },
      mayOnFile(file, "write") && { text: "Rename…", run: () => changed(rename(file, kind)) },
      mayOnFile(file, "write") && { text: "Move to a folder…", run: () => changed(moveFile(file, kind)) },
      file.status === "available" && mayOnFile(file, "admin") && { text: "Share by a link…", run: () => share(file) },
      mayOnFile(file, "admin") && { text: "Delete…", tone: "bad", run: async () => dropRows(await remove([file])) },
    ]} />`,
  };
  return html`<${Heading} title=${title} sub=${sub}>${servesContent && html`<${ChooseFiles} />`}</${Heading}>
    ${kind === "backup" && html`<p><label class="flag"><input type="checkbox" checked=${showsRestic}
      onChange=${(event) => setShowsRestic(event.target.checked)} /> Show the files of restic repositories</label></p>`}
    ${list.isCut && html`<${Cut} beginning=${beginning} setBeginning=${setBeginning} noun=${noun} />`}
    <${DataTable} label=${title} noun=${noun} rows=${rows} keyOf=${(file) => file.file_uuid}
      nameOf=${(file) => file.filename} columns=${[nameColumn, ...columns, ...fileColumns, rowMenu]}
      sort=${{ key: "created_at", down: true }} isLoading=${list.isLoading} error=${list.error} refresh=${list.refresh}
      search=${{ label: "Search by name or owner", text: (f) => `${joined(f.path || "", f.filename)} ${f.owner_id} ${f.file_uuid}` }}
      filters=${[{ key: "status", title: "State", options: STATUSES, accept: (f, value) => f.status === value }, ...narrowing]}
      actions=${(marked, clear) => html`<${Action} run=${() => downloadAll(marked.filter((f) => f.status === "available"))}>Download</${Action}>
        ${servesContent && html`<${Action} run=${() => downloadZip("", marked, "", title.toLowerCase())}>Download as a zip…</${Action}>`}
        ${marked.every((f) => mayOnFile(f, "admin")) && html`<${Action} tone="danger" run=${async () => {
          dropRows(await remove(marked));
          clear();
        }}>Delete…</${Action}>`}`}
      empty=${html`<${Empty} title="No ${noun} yet.">${empty}<p>Files of others are in the <a href="#/buckets">buckets</a> that you may read,
        and under <a href="#/access">Access</a>.</p></${Empty}>`} />`;
}

// Too many for one page: the beginning of a name finds the others.
export function Cut({ beginning, setBeginning, noun }) {
  return html`<form class="banner" onSubmit=${(event) => {
    event.preventDefault();
    setBeginning(new FormData(event.target).get("beginning"));
  }}>Only the first ${ROWS_MAX.toLocaleString("en")} are shown. <label>Name begins with
    <input name="beginning" value=${beginning} /></label> <button type="submit" class="small">Find the ${noun}</button></form>`;
}
