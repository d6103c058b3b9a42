// What a bucket shows: the folders and files of one folder, or all files below it while somebody searches.
import { html, useEffect, useMemo } from "../html.js";
import * as api from "../api.js";
import { address, bucketAt, path } from "../path.js";
import { Name } from "../ui/parts.js";
import { below, nameOf, parentOf, partsOf } from "./paths.js";

const FILES_MAX = 100_000; // of what is moved, deleted or downloaded at once
const LISTED_ONE_BY_ONE_MAX = 50; // folders; for more, all files of the folder that they are in are read

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

// All files of these rows, which are of one list: the files themselves, and those in each folder and below it.
export async function filesOf(bucketId, rows, signal) {
  const listed = async (query, rowsMax) => {
    const found = await api.list(path`${bucketAt(bucketId)}/files`, "files", { query, signal, rowsMax });
    if (found.isCut) throw tooMany();
    return found.rows;
  };
  const folders = rows.filter((row) => row.isFolder).map((row) => row.path);
  const found = rows.filter((row) => !row.isFolder);
  if (folders.length > LISTED_ONE_BY_ONE_MAX) {
    const parent = parentOf(folders[0]);
    const chosen = new Set(folders.map(nameOf));
    const all = await listed(parent ? { path: parent, recursive: 1 } : {}, FILES_MAX * 10);
    found.push(...all.filter((file) => chosen.has(partsOf(below(file.path, parent))[0])));
  } else {
    for (const folder of folders) found.push(...(await listed({ path: folder, recursive: 1 }, FILES_MAX)));
  }
  if (found.length > FILES_MAX) throw tooMany();
  return found;
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
