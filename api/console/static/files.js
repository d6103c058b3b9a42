// What can be done with files of any kind: where they are in the API, download, rename, share, delete.
import { html } from "./html.js";
import * as api from "./api.js";
import { inHours } from "./clock.js";
import { counted, fromLocalInput, localInput, moment } from "./format.js";
import { address, fileAt, originOf, path, uuid } from "./path.js";
import { origin, servesContent } from "./place.js";
import { isMine, ownersOf, useRights } from "./rights.js";
import { confirm, Dialog, FormDialog, inTurn, show } from "./ui/dialog.js";
import { Copy, Name } from "./ui/parts.js";
import { notify } from "./ui/toast.js";
import { withoutClashes } from "./uploads/present.js";

// The kinds as the API has them: path, the field of lists, what they are called, and their page.
export const KINDS = {
  project: { path: path`project-files`, field: "project_files", noun: "project", title: "Projects", page: "/projects" },
  image: { path: path`vms`, field: "vms", noun: "image", title: "Images", page: "/images" },
  backup: { path: path`backups`, field: "backups", noun: "backup", title: "Backups", page: "/backups" },
};

// The record of a file of this kind, and the page that shows it.
export const recordAt = (kind, id) => path`${KINDS[kind].path}/${uuid(id)}`;
export const fileAddress = (file, kind = file.kind) => address`/file/${file.file_uuid}?kind=${kind}`;
const TICKET_S_MIN = 900;
const TICKET_S_MAX = 3600; // as the API allows
const SLOW_BYTES_PER_S = 1e6;
const HOURS_MAX = 30 * 24;
const BETWEEN_DOWNLOADS_MS = 700; // browsers drop downloads that are begun at once

export const STATUSES = [
  ["available", "available"],
  ["uploading", "uploading"],
  ["pending", "pending"],
  ["tombstoned", "tombstoned"],
];

// The browser's own download manager fetches the file: by an address that lives as long as a slow download takes, for
// an hour at most, so that the manager can resume it.
export async function download(file) {
  const seconds = Math.ceil(file.size_bytes / SLOW_BYTES_PER_S);
  const ttl_seconds = Math.min(Math.max(seconds, TICKET_S_MIN), TICKET_S_MAX);
  const { url } = await api.post(path`${fileAt(file.file_uuid)}/ticket`, { ttl_seconds });
  const link = document.createElement("a");
  link.href = new URL(new URL(url).pathname, servesContent ? origin() : originOf(url)).href;
  link.download = file.filename;
  link.rel = "noreferrer";
  document.body.append(link);
  link.click();
  link.remove();
}

export async function downloadAll(files) {
  if (files.length < 2) return Promise.all(files.map(download));
  return confirm({
    title: `Download ${files.length.toLocaleString("en")} files?`,
    names: files.map((file) => file.filename),
    text: "Your browser downloads them one after the other. It may ask you to allow several downloads.",
    action: `Download ${files.length.toLocaleString("en")} files`,
    tone: "",
    run: (work) => inTurn(files, async (file) => {
      if (file !== files[0]) await new Promise((done) => setTimeout(done, BETWEEN_DOWNLOADS_MS));
      if (!work.signal.aborted) await download(file);
    }, work),
  });
}

// The record as it is after; undefined when nothing was changed. `file`: with its `bucket_id`.
export async function rename(file, kind) {
  const record = await show((close) => html`<${Renaming} file=${file} kind=${kind} close=${close} />`);
  return record === UNCHANGED ? undefined : record;
}

const UNCHANGED = Symbol("nothing was renamed");

function Renaming({ file, kind, close }) {
  const { mayOnFile } = useRights();
  const submit = async ({ filename }) => {
    if (filename === file.filename) return UNCHANGED;
    const place = file.path || "";
    const wanted = await withoutClashes([{ bucket_id: file.bucket_id, path: place, filename }], place, mayOnFile, new Set([file.file_uuid]));
    if (!wanted?.length) return UNCHANGED;
    const record = await api.patch(recordAt(kind, file.file_uuid), { filename });
    for (const old of wanted[0].replaces || []) await api.del(fileAt(old));
    return record;
  };
  return html`<${FormDialog} title="Rename" close=${close} action="Rename" submit=${submit}>
    <label>New name<input name="filename" required maxlength="255" defaultValue=${file.filename} autofocus
      pattern="[^\\/]+" title="Any name without a slash" /></label>
    <p class="quiet">Links and permissions stay. Downloads use the new name at once.</p></${FormDialog}>`;
}

// Deletes after asking, one by one until somebody stops it; what could not be deleted is told. -> ids of those that are gone.
export async function remove(files) {
  const gone = [];
  const others = files.filter((file) => !isMine(file));
  await confirm({
    title: files.length === 1 ? "Delete this file?" : `Delete ${files.length} files?`,
    names: files.map((file) => file.filename),
    text: "This cannot be undone. Links to it stop working, and nobody can read it any more.",
    action: files.length === 1 ? "Delete" : `Delete ${files.length} files`,
    box: others.length > 0 && `${counted(others.length, "file belongs", "files belong")} to other users: ${ownersOf(others)}. Delete ${others.length === 1 ? "it" : "them"}.`,
    run: (work) => inTurn(files.filter((each) => !gone.includes(each.file_uuid)), async (file) => {
      await api.del(fileAt(file.file_uuid)).catch((error) => {
        if (error.status === 404) return;
        error.message = `${file.filename}: ${error.message}`;
        throw error;
      });
      gone.push(file.file_uuid);
    }, work),
  });
  const left = gone.length < files.length ? ` ${(files.length - gone.length).toLocaleString("en")} are kept.` : "";
  if (gone.length > 0) notify(`${gone.length === 1 ? "The file is" : `${gone.length.toLocaleString("en")} files are`} deleted.${left}`, left ? "warn" : "good");
  return gone;
}

// Where somebody without an account finds a page for a link: its address says the same as the API's.
export function linkPage(url) {
  const [, bucket, token] = /\/public\/files\/([^/]+)\/([^/]+)$/.exec(url);
  return `${originOf(url)}/console/${address`/link/${bucket}/${token}`}`;
}

// Makes a public link and shows it, once. Resolves with true when one was made.
export async function share(file) {
  const made = await show(
    (close) => html`<${FormDialog} title="Share by a link" close=${close} action="Create the link" submit=${({ until }) =>
      api.post(path`${fileAt(file.file_uuid)}/public-token`, { expires_at: fromLocalInput(until) })}>
      <p><${Name}>${file.filename}</${Name}></p>
      <label>The link expires<input type="datetime-local" name="until" required defaultValue=${localInput(inHours(24))}
        min=${localInput(inHours(0))} max=${localInput(inHours(HOURS_MAX - 1))} /></label>
      <p class="quiet">Anyone who has the link can download this file without signing in, until it expires or you revoke
        it; at most 30 days.</p></${FormDialog}>`,
  );
  if (!made) return false;
  await show(
    (close) => html`<${Dialog} title="The link" close=${() => close()} wide>
      <p>It is shown only once, so copy it now. It expires at <strong>${moment(made.expires_at)}</strong>.</p>
      <h3>For people</h3><p>A page with the name, the size and a button.</p>
      <p class="copy-row"><code class="copied" tabindex="0">${linkPage(made.url)}</code><${Copy} text=${linkPage(made.url)}
        label="Copy the link for people" /></p>
      <h3>For programs</h3><p>The file itself, for <code>curl -OJ</code> or <code>wget</code>.</p>
      <p class="copy-row"><code class="copied" tabindex="0">${made.url}</code><${Copy} text=${made.url}
        label="Copy the link for programs" /></p>
      <footer><button type="button" onClick=${() => close()}>Done</button></footer></${Dialog}>`,
  );
  return true;
}
