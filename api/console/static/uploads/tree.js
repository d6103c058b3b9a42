// Files and folders that are dropped or chosen: each file with the folder that it was in, below what was chosen.
import { parentOf } from "../folders/paths.js";

export const FILES_MAX = 10_000;

// Of an input: { files: [{ file, folder }], isTree }. An input for folders names neither empty folders nor links.
export function chosenIn(input) {
  const files = [...input.files].map((file) => ({ file, folder: parentOf(file.webkitRelativePath || "") }));
  return { files, isTree: files.some((each) => each.folder) };
}

// What is dropped, folders opened: { files, isTree, leftOut, empty, unread }, of which at most FILES_MAX are opened, and
// the others are counted. `empty`: how many folders have nothing in them; `unread`: paths of what cannot be read.
export async function droppedIn(items) {
  const entries = [...items].filter((item) => item.kind === "file").map((item) => item.webkitGetAsEntry?.() || item.getAsFile());
  const found = { files: [], isTree: false, leftOut: 0, empty: 0, unread: [] };
  for (const entry of entries) await walk(entry, found);
  return found;
}

async function walk(entry, found) {
  if (!entry) return;
  if (entry instanceof File) found.files.push({ file: entry, folder: "" });
  else if (entry.isDirectory) await walkFolder(entry, found);
  else if (found.files.length >= FILES_MAX) found.leftOut += 1;
  else {
    const file = await new Promise((done, failed) => entry.file(done, failed)).catch(() => null);
    if (file) found.files.push({ file, folder: parentOf(entry.fullPath) });
    else found.unread.push(entry.fullPath);
  }
}

async function walkFolder(entry, found) {
  found.isTree = true;
  const reader = entry.createReader();
  for (let isEmpty = true; ; isEmpty = false) {
    const some = await new Promise((done, failed) => reader.readEntries(done, failed)).catch(() => null);
    if (!some) found.unread.push(entry.fullPath);
    else if (some.length === 0 && isEmpty) found.empty += 1;
    if (!some?.length) return;
    for (const each of some) await walk(each, found);
  }
}
