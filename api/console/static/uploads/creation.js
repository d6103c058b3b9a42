// Creates the record of a new file, and sends a small file along. A request that got no answer is repeated with its key:
// the answer is then that of the first one, never a second file.
import * as api from "../api.js";
import { now } from "../clock.js";
import { contentOf } from "./content.js";

export const SMALL_BYTES_MAX = 128 << 10; // of a file that goes in one request: what nodes store with its record
const METADATA_BYTES_MAX = 4 << 10; // of the fields of a record, as a header; servers take twice this
const WAIT_S_MAX = 10; // a longer one that an answer asks for is for people to decide
const RETRY_MS = [300, 1000, 2000, 4000, 6000, 8000, 8000, 8000]; // as long as an election or a restart of a node takes

// A new key: a UUIDv7, whose time the id of the file gets, as lists are in the order of that.
export function newKey() {
  const time = now().toString(16).padStart(12, "0");
  return crypto.randomUUID().replace(/^.{8}-.{4}-4/, `${time.slice(0, 8)}-${time.slice(8)}-7`);
}

// -> { file_uuid, isStored }. `key`: of this file alone, the same for each try. `isWanted()`: whether to try again.
// Raises ApiError, and ContentError for a file that was changed.
export async function create(path, fields, file, { key, isWanted }) {
  const metadata = metadataOf(fields);
  if (metadata.length > METADATA_BYTES_MAX) {
    const { file_uuid } = await api.post(path, { ...fields, size_bytes: file.size });
    return { file_uuid, isStored: false };
  }
  const headers = { "Tus-Resumable": "1.0.0", "Upload-Length": file.size, "Upload-Metadata": metadata, "Idempotency-Key": key };
  const content = file.size <= SMALL_BYTES_MAX ? await contentOf(file) : undefined;
  if (content) headers["Content-Type"] = "application/offset+octet-stream";
  for (let tries = 0; ; tries += 1) {
    try {
      const { file_uuid, status } = await api.request("POST", path, { headers, content });
      return { file_uuid, isStored: status === "available" };
    } catch (error) {
      const isPassing = error.code === "unanswered" || ([429, 503].includes(error.status) && error.waitS <= WAIT_S_MAX);
      if (!isPassing || tries >= RETRY_MS.length) throw error;
      await new Promise((done) => setTimeout(done, Math.max(RETRY_MS[tries], 1000 * error.waitS)));
      if (!isWanted()) throw error;
    }
  }
}

// The fields of a record as Upload-Metadata.
function metadataOf(fields) {
  const base64 = (text) => btoa(String.fromCharCode(...new TextEncoder().encode(text)));
  return Object.entries(fields).map(([name, value]) => `${name} ${base64(String(value))}`).join(",");
}
