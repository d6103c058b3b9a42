// Uploads that were started and have not ended, for when the page is reloaded: no content, no secret.
import { createStore } from "../html.js";

const KEY = "filestore.uploads";
const ENTRIES_MAX = 500;

function read() {
  try {
    return JSON.parse(localStorage.getItem(KEY) || "[]");
  } catch {
    return [];
  }
}

// [{ file_uuid, filename, size_bytes, kind, user, begun_at }], of all tabs and users of this browser.
export const memory = createStore(read());
addEventListener("storage", (event) => event.key === KEY && memory.set(read()));

export const remembered = (user) => memory.get().filter((entry) => entry.user === user);

function write(change) {
  const entries = change(read()).slice(-ENTRIES_MAX);
  try {
    localStorage.setItem(KEY, JSON.stringify(entries));
  } catch {
    // Nothing is remembered after a reload if storage is forbidden or full; uploads continue.
  }
  memory.set(entries);
}

export const remember = (entry) =>
  write((entries) => [...entries.filter((each) => each.file_uuid !== entry.file_uuid), entry]);

export const forget = (fileUuid) => write((entries) => entries.filter((each) => each.file_uuid !== fileUuid));

// Which uploads some tab of this browser is sending: each holds the lock of its name.
const lockOf = (fileUuid) => `filestore.upload.${fileUuid}`;

// Hold the lock of an upload until the returned function is called, or the tab is gone.
export function holdLock(fileUuid) {
  let release = () => {};
  const held = new Promise((resolve) => {
    release = resolve;
  });
  navigator.locks?.request(lockOf(fileUuid), { ifAvailable: true }, () => held).catch(() => {});
  return release;
}

// The ids of these uploads that a tab of this browser is sending now.
export async function sentByATab(fileUuids) {
  const { held = [] } = (await navigator.locks?.query()) || {};
  const names = new Set(held.map(({ name }) => name));
  return new Set(fileUuids.filter((each) => names.has(lockOf(each))));
}
