// Uploads that have begun and not ended, for when the page is loaded anew: no content, no secret.

const KEY = "filestore.uploads";
const ENTRIES_MAX = 500;

// [{ file_uuid, filename, size_bytes, kind, user, begun_at }], of all tabs of this browser.
export function remembered(user) {
  try {
    const entries = JSON.parse(localStorage.getItem(KEY) || "[]");
    return entries.filter((entry) => entry.user === user);
  } catch {
    return [];
  }
}

function write(change) {
  try {
    const entries = change(JSON.parse(localStorage.getItem(KEY) || "[]"));
    localStorage.setItem(KEY, JSON.stringify(entries.slice(-ENTRIES_MAX)));
  } catch {
    // Nothing is remembered where storage is forbidden or full; uploads go on without.
  }
}

export const remember = (entry) =>
  write((entries) => [...entries.filter((each) => each.file_uuid !== entry.file_uuid), entry]);

export const forget = (fileUuid) => write((entries) => entries.filter((each) => each.file_uuid !== fileUuid));
