// What a bucket shows: the folders and files of one folder, or all files below it while somebody searches.
import { html, useEffect, useMemo } from "../html.js";
import * as api from "../api.js";
import { address, bucketAt, path } from "../path.js";
import { Name } from "../ui/parts.js";
import { parentOf, partsOf } from "./paths.js";

const FILES_MAX = 100_000; // of what is moved, deleted or downloaded at once

export const folderAddress = (bucketId, folder) =>
  (folder ? address`/buckets/${bucketId}?folder=${folder}` : address`/buckets/${bucketId}`);

// Whether a list of folders failed because a member is of a version without them.
const isUnknown = (error) => Boolean(error) && [404, 503].includes(error.status);

// { rows, isFlat, isCut, isLoading, error, refresh, change }: folders first, each { isFolder, key, filename, path }.
// isFlat: the rows are all files of the bucket, because its folders cannot be listed.
export function useFolder(bucketId, folder, isSearched) {
  const own = bucketAt(bucketId);
  const folders = api.useList(path`${own}/folders`, "folders", { path: folder });
  const isFlat = isUnknown(folders.error);
  const inside = { path: folder || "/", recursive: isSearched ? 1 : "" };
  const files = api.useList(path`${own}/files`, "files", isFlat || (isSearched && !folder) ? {} : inside);
  const isHidden = isFlat || isSearched;
  const rows = useMemo(() => {
    const shown = isHidden ? [] : folders.rows.map((each) => ({
      isFolder: true, key: `folder ${each.path}`, filename: each.name, path: each.path, kind: "folder" }));
    return [...shown, ...files.rows.map((file) => ({ ...file, key: file.file_uuid }))];
  }, [folders.rows, files.rows, isHidden]);
  const refresh = () => Promise.all([folders.refresh(), files.refresh()]);
  useEffect(() => {
    addEventListener("filestore:stored", refresh);
    return () => removeEventListener("filestore:stored", refresh);
  }, []);
  return {
    rows, isFlat, refresh,
    isCut: files.isCut || (!isHidden && folders.isCut),
    isLoading: files.isLoading || (!isHidden && folders.isLoading),
    error: files.error || (isFlat ? null : folders.error),
  };
}

// All files of these rows: the files themselves, and those in each folder and below it.
export async function filesOf(bucketId, rows, signal) {
  const found = new Map();
  for (const row of rows) {
    if (!row.isFolder) {
      found.set(row.file_uuid, row);
      continue;
    }
    const query = { path: row.path, recursive: 1 };
    const below = await api.list(path`${bucketAt(bucketId)}/files`, "files", { query, signal, rowsMax: FILES_MAX });
    for (const file of below.rows) found.set(file.file_uuid, file);
    if (below.isCut || found.size > FILES_MAX) throw tooMany();
  }
  return [...found.values()];
}

function tooMany() {
  const error = new Error(`These are more than ${FILES_MAX.toLocaleString("en")} files.`);
  error.advice = "Choose folders with fewer files, one after the other.";
  return error;
}

// Where one is in a bucket, with a way up.
export function Breadcrumb({ bucket, folder }) {
  const parts = partsOf(folder);
  const steps = parts.map((name, at) => [name, parts.slice(0, at + 1).join("/")]);
  return html`<nav class="crumbs" aria-label="Folders"><ol>
    <li><a href=${folderAddress(bucket.bucket_id, "")}><${Name}>${bucket.name}</${Name}></a></li>
    ${steps.map(([name, whole]) => html`<li key=${whole}>${whole === folder
      ? html`<span aria-current="page"><${Name}>${name}</${Name}></span>`
      : html`<a href=${folderAddress(bucket.bucket_id, whole)}><${Name}>${name}</${Name}></a>`}</li>`)}</ol></nav>`;
}

// The name of a file or folder in a list, with the folder that it is in where that is not the one shown.
export function Titled({ href, name, bucketId, folder, icon }) {
  return html`<span class="titled">${icon && html`<${Icon} of=${icon} />`}<span class="lines"><a href=${href} class="file-name"><${Name}>${name}</${Name}></a>
    ${folder && html`<a class="in-folder" href=${folderAddress(bucketId, folder)}><${Name} title="In the folder ${folder}">${folder}</${Name}></a>`}</span></span>`;
}

// A name with the folder that it is in below it, without a link.
export const Located = ({ name, folder }) => html`<span class="located"><${Name}>${name}</${Name}>${folder && html`<small><bdi title=${folder}>${folder}</bdi></small>`}</span>`;

const SHAPES = {
  folder: "M1.500 4v8.500h13V5.500H8L6.500 4z",
  file: "M3.500 1.500h6l3 3v10h-9zM9.500 1.500v3h3",
};

const Icon = ({ of }) => html`<svg class="icon ${of}" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true"><path d=${SHAPES[of]} /></svg>`;

export const upOf = (bucketId, folder) => folderAddress(bucketId, parentOf(folder));
