// What can be done with files and folders of a bucket: move, rename a folder, delete. A folder is the files in and below it.
import { html, useEffect, useState } from "../html.js";
import * as api from "../api.js";
import { recordAt } from "../files.js";
import { counted, size } from "../format.js";
import { fileAt } from "../path.js";
import { isMine, ownersOf, useRights } from "../rights.js";
import { withoutClashes } from "../uploads/present.js";
import { FormDialog, show } from "../ui/dialog.js";
import { ErrorBox, Loading, Name } from "../ui/parts.js";
import { notify } from "../ui/toast.js";
import { FolderField } from "./field.js";
import { filesOf } from "./listing.js";
import { below, isWithin, joined, nameOf, parentOf, wrongIn } from "./paths.js";
import { report, severally } from "./severally.js";

const NAMES_SHOWN = 8;

// Reads what is in the rows of a list, once: { files, error }; `files` is null until they are known.
export function useFiles(bucketId, rows) {
  const [state, setState] = useState({ files: null, error: null });
  useEffect(() => {
    const reading = new AbortController();
    filesOf(bucketId, rows, reading.signal).then(
      (files) => !reading.signal.aborted && setState({ files, error: null }),
      (error) => !reading.signal.aborted && setState({ files: null, error }),
    );
    return () => reading.abort();
  }, []);
  return state;
}

// What is in the rows, for an action that changes it: { files, error, others, takesAll, setTakesAll }. An admin sees the files
// of all users, so `files` are the user's own until the box of `Chosen` says otherwise; `others` are those of other users.
function useFilesToChange(bucketId, rows) {
  const { files: found, error } = useFiles(bucketId, rows);
  const [takesAll, setTakesAll] = useState(false);
  const others = (found || []).filter((file) => !isMine(file));
  return { files: found && (takesAll ? found : found.filter(isMine)), error, others, takesAll, setTakesAll };
}

// "3 files", and how large they are.
export const amount = (files) => `${counted(files.length, "file")}, ${size(files.reduce((sum, each) => sum + each.size_bytes, 0))}`;

// What is chosen, by name, and how many files that is; and a box for files of other users, if there are any.
export function Chosen({ rows, files, error, others = [], takesAll, setTakesAll }) {
  const folders = rows.filter((row) => row.isFolder).length;
  return html`<ul class="named">${rows.slice(0, NAMES_SHOWN).map((row) => html`<li><${Name}>${row.filename}</${Name}>${row.isFolder ? html` <span class="quiet">folder</span>` : ""}</li>`)}
      ${rows.length > NAMES_SHOWN && html`<li class="quiet">and ${(rows.length - NAMES_SHOWN).toLocaleString("en")} more</li>`}</ul>
    <${ErrorBox} error=${error} />
    ${files ? html`<p role="status"><strong>${amount(files)}</strong>${folders > 0 ? `, with all that is in ${folders === 1 ? "the folder" : "the folders"} and below` : ""}.</p>`
      : !error && html`<${Loading} lines=${1} label="Counting the files" />`}
    ${others.length > 0 && html`<p class="banner warn"><label class="flag"><input type="checkbox" name="others" checked=${takesAll}
      onChange=${(event) => setTakesAll(event.target.checked)} /> ${counted(others.length, "file belongs", "files belong")} to other users: ${ownersOf(others)}.
      Include ${others.length === 1 ? "it" : "them"}.</label></p>`}`;
}

// Does `act(file)` for each file, shows what failed, and tells the rest. Resolves once nothing is under way any more.
async function done(running, { title, text }) {
  const result = await Promise.resolve(running).catch(() => null); // what it raised was shown
  if (!result) return;
  const good = result.tried - result.failed.length;
  if (good > 0) notify(`${counted(good, "file")} ${text}.`, result.failed.length > 0 ? "warn" : "good");
  await report(title, result.failed);
}

// `act` for each of the files, and how many of them that was when somebody stopped it.
async function each(files, act, work) {
  let tried = 0;
  const failed = await severally(files, (file) => act(file).finally(() => (tried += 1)), work);
  return { tried, failed };
}

// Deletes after asking: files, and folders with all in and below them. -> whether anything may be gone.
export async function removeAll(bucketId, rows) {
  let running;
  await show((close) => html`<${Removal} bucketId=${bucketId} rows=${rows} close=${close} begun=${(promise) => (running = promise)} />`);
  await done(running, { title: "Files that are not deleted", text: "deleted" });
  return Boolean(running);
}

function Removal({ bucketId, rows, close, begun }) {
  const chosen = useFilesToChange(bucketId, rows);
  const { files } = chosen;
  const what = rows.length > 1 ? counted(rows.length, "item") : rows[0].isFolder ? "the folder" : "the file";
  const submit = (_, work) => {
    // A backup cannot be deleted before those that build on it: these are newer.
    const newestFirst = [...files].sort((a, b) => (a.created_at < b.created_at ? 1 : -1));
    const promise = each(newestFirst, drop, work).then((result) => again(result, work));
    begun(promise);
    return promise;
  };
  return html`<${FormDialog} title="Delete ${what}?" close=${close} action=${files ? `Delete ${counted(files.length, "file")}` : "Delete"}
    tone="danger" isReady=${isReady(chosen)} submit=${submit}><${Chosen} rows=${rows} ...${chosen} />
    <p>This cannot be undone. Links to ${rows.length === 1 && !rows[0].isFolder ? "it" : "them"} stop working.</p></${FormDialog}>`;
}

// Whether there is something to do; not if all files belong to other users and are not included.
const isReady = ({ files, others }) => Boolean(files) && (files.length > 0 || others.length === 0);

const drop = (file) => api.del(fileAt(file.file_uuid)).catch((error) => {
  if (error.status !== 404) throw error;
});

// Those that were in use when their turn came, one after the other: what builds on them may be gone by now.
async function again({ tried, failed }, work) {
  const left = [];
  for (const one of failed) {
    if (one.error.status !== 409 || work.signal.aborted) left.push(one);
    else await drop(one.item).catch((error) => left.push({ item: one.item, error }));
  }
  return { tried, failed: left };
}

// Changes folder or name of a file, and deletes what it replaces: the record as it is then.
async function place({ file, kind = file.kind, changes, replaces = [] }) {
  const record = await api.patch(recordAt(kind, file.file_uuid), changes);
  for (const old of replaces) await drop({ file_uuid: old });
  return record;
}

// What is to be moved, [{ file, folder }, ...], in the form for `place`; names that are there already are asked about.
// Undefined if the user decides to move nothing. `base`: all folders are this one or below it.
async function settled(bucketId, plan, base, mayOnFile) {
  const wanted = plan.map(({ file, folder }) => ({
    bucket_id: bucketId, path: folder, filename: file.filename, file, changes: { path: folder || "/" } }));
  return withoutClashes(wanted, base, mayOnFile, new Set(plan.map(({ file }) => file.file_uuid)));
}

// Moves them one by one; the name of each is that in lists of what failed.
const moveEach = (wanted, work) => each(wanted.map((one) => ({ ...one.file, one })), ({ one }) => place(one), work);

// Moves files and folders to a folder that is asked for. -> whether anything may be moved.
export async function moveAll(bucketId, rows, from) {
  let running;
  await show((close) => html`<${Move} bucketId=${bucketId} rows=${rows} from=${from} close=${close} begun=${(promise) => (running = promise)} />`);
  await done(running, { title: "Files that are not moved", text: "moved" });
  return Boolean(running);
}

function Move({ bucketId, rows, from, close, begun }) {
  const chosen = useFilesToChange(bucketId, rows);
  const { files } = chosen;
  const { mayOnFile } = useRights();
  const submit = async ({ folder }, work) => {
    const target = joined(folder);
    const inItself = rows.find((row) => row.isFolder && isWithin(target, row.path));
    const wrong = wrongIn(target) || (inItself ? `A folder cannot be moved into itself: ${inItself.path}` : "");
    if (wrong) throw new Error(wrong);
    // What is in a folder that is moved keeps its place below that.
    const folders = rows.filter((row) => row.isFolder);
    const targetOf = (file) => {
      const moved = folders.find((row) => isWithin(file.path, row.path));
      return moved ? joined(target, nameOf(moved.path), below(file.path, moved.path)) : target;
    };
    const plan = files.map((file) => ({ file, folder: targetOf(file) })).filter(({ file, folder: to }) => to !== file.path);
    const wanted = await settled(bucketId, plan, target, mayOnFile);
    if (!wanted) return true;
    const promise = moveEach(wanted, work);
    begun(promise);
    return promise;
  };
  return html`<${FormDialog} title="Move to a folder" close=${close} action="Move" isReady=${isReady(chosen)} submit=${submit}>
    <${Chosen} rows=${rows} ...${chosen} /><${FolderField} bucketId=${bucketId} value=${from} />
    <p class="quiet">A folder that does not exist yet is created. Links and permissions stay.</p></${FormDialog}>`;
}

// Gives a folder another name: every file in and below it is moved. -> whether anything may be moved.
export async function renameFolder(bucketId, row) {
  let running;
  await show((close) => html`<${Renaming} bucketId=${bucketId} row=${row} close=${close} begun=${(promise) => (running = promise)} />`);
  await done(running, { title: "Files that keep the old folder", text: "moved to the renamed folder" });
  return Boolean(running);
}

function Renaming({ bucketId, row, close, begun }) {
  const chosen = useFilesToChange(bucketId, [row]);
  const { files } = chosen;
  const { mayOnFile } = useRights();
  const submit = async ({ name }, work) => {
    const target = joined(parentOf(row.path), name);
    if (wrongIn(target)) throw new Error(wrongIn(target));
    if (target === row.path) return true;
    const wanted = await settled(bucketId, files.map((file) => ({ file, folder: joined(target, below(file.path, row.path)) })), target, mayOnFile);
    if (!wanted) return true;
    const promise = moveEach(wanted, work);
    begun(promise);
    return promise;
  };
  return html`<${FormDialog} title="Rename the folder" close=${close} action="Rename" isReady=${isReady(chosen)} submit=${submit}>
    <${Chosen} rows=${[row]} ...${chosen} />
    <label>New name<input name="name" required maxlength="255" defaultValue=${row.filename} autofocus pattern="[^\\/]+" title="Any name without a slash" /></label>
    <p class="quiet">If there is a folder of that name already, the files are added to it.</p></${FormDialog}>`;
}

// Moves one file of a list or page, whose kind is known. -> its record then, undefined if nothing was changed.
export async function moveFile(file, kind) {
  const record = await show((close) => html`<${MoveOne} file=${file} kind=${kind} close=${close} />`);
  return record === UNCHANGED ? undefined : record;
}

const UNCHANGED = Symbol("nothing was moved");

function MoveOne({ file, kind, close }) {
  const { mayOnFile } = useRights();
  const submit = async ({ folder }) => {
    const target = joined(folder);
    if (wrongIn(target)) throw new Error(wrongIn(target));
    if (target === (file.path || "")) return UNCHANGED;
    const wanted = await settled(file.bucket_id, [{ file, folder: target }], target, mayOnFile);
    return wanted?.length > 0 ? place({ ...wanted[0], kind }) : UNCHANGED;
  };
  return html`<${FormDialog} title="Move to a folder" close=${close} action="Move" submit=${submit}><p><${Name}>${file.filename}</${Name}></p>
    <${FolderField} bucketId=${file.bucket_id} value=${file.path || ""} />
    <p class="quiet">A folder that does not exist yet is created. Links and permissions stay.</p></${FormDialog}>`;
}
