// What is read of a file beside what tus sends: its first bytes, which are compared with what has arrived, and its end.
import { ApiError } from "../api.js";
import { size } from "../format.js";

const READ_BYTES = 1 << 20; // hashed at once, some milliseconds: the page stays alive
const END_BYTES = 8 << 20; // as `filestore put` sends it

// The file that was chosen cannot be the content of the upload. `arrived`: how many bytes of another one have.
export class ContentError extends ApiError {
  constructor(code, message, advice, arrived = 0) {
    super(0, code, message);
    this.advice = advice;
    this.arrived = arrived;
  }
}

const hashed = new WeakMap(); // run -> { at, state }: of the bytes that were compared last

// Raises ContentError unless the first `arrived` bytes of the file have this digest, as Upload-Prefix-Digest says it.
// `isOurs`: this tab sent them, of this very file, so that a node need not tell (until 0.3.0: one of 0.1.0 does not). `goesOn(bytes)` is told how many
// are read; where it answers false the comparison ends, as an error. `run`: what goes on by itself, until somebody pauses.
export async function requirePrefix(file, arrived, told, { isOurs, goesOn, run }) {
  await requireUnchanged(file);
  if (arrived === 0 || (!told && isOurs)) return;
  if (!told) {
    throw new ContentError("no_digest", "A node runs an older version that has no digest of the uploaded bytes, so this file cannot be compared with them.",
      "Choose the file again when all nodes are upgraded. Or start over with it, which deletes the uploaded bytes.");
  }
  if ((await prefixDigest(file, arrived, goesOn, run)) === told) return;
  throw arrived === file.size
    ? new ContentError("other_content", `${file.name} differs from what was uploaded before. All of that had arrived, and it is stored.`,
      "Upload this file as another one, or remove this line.", arrived)
    : new ContentError("other_content", `The first ${size(arrived)} of ${file.name} differ from the bytes that are already uploaded.`,
      "The file has changed, or it is another file. Choose the unchanged file. Or start over with this one, which deletes the uploaded bytes.", arrived);
}

export function requireSize(file, bytes) {
  if (file.size === bytes) return;
  throw new ContentError("other_content", `${file.name} has ${file.size.toLocaleString("en")} bytes, and this upload was begun with ${bytes.toLocaleString("en")}.`,
    "The file has changed, or it is another file. Choose the unchanged file. Or start over with this one, which deletes the uploaded bytes.");
}

// What was hashed for an earlier comparison of the same run is not read again. After a pause it is: browsers tell that a
// file was written to by its time of change alone, which a program may keep.
async function prefixDigest(file, stop, goesOn, run) {
  const { sha256 } = await import("../vendor/noble-sha2.js");
  const known = hashed.get(run);
  let { at, state } = known && known.at <= stop ? known : { at: 0, state: sha256.create() };
  state = state.clone();
  while (at < stop) {
    const piece = await bytesOf(file.slice(at, Math.min(stop, at + READ_BYTES)));
    if (!goesOn(at)) throw new ContentError("ended", "The comparison was cancelled.", "");
    state.update(piece);
    at += piece.length;
  }
  hashed.set(run, { at, state: state.clone() });
  return `sha-256=:${btoa(String.fromCharCode(...state.digest()))}:`;
}

async function bytesOf(blob) {
  const bytes = new Uint8Array(await blob.arrayBuffer().catch(() => new ArrayBuffer(0)));
  if (bytes.length === blob.size) return bytes;
  throw new ContentError("file_changed", "The file was changed, moved or deleted since it was chosen.",
    "No more of it is sent. Choose the file again.");
}

// Raises ContentError for a file that was written to, moved or deleted since it was chosen: browsers read no byte of it.
export const requireUnchanged = (file) => bytesOf(file.slice(0, 1));

// The bytes of a file from `start`. Raises ContentError for a file that was written to since it was chosen.
export async function contentOf(file, start = 0) {
  const content = await bytesOf(file.slice(start));
  await requireUnchanged(file);
  return content;
}

// For tus: the end of a file goes by itself, once it was read and the file was not written to until then. So a file
// that changes while it is sent never becomes available.
export const reader = {
  openFile: async (file) => ({
    size: file.size,
    close: () => {},
    slice: async (start) => {
      await requireUnchanged(file);
      if (file.size - start > END_BYTES) return { value: file.slice(start, file.size - END_BYTES), done: false };
      return { value: new Blob([await contentOf(file, start)]), done: true };
    },
  }),
};
