// One zip of many files, made while their content comes: nothing is compressed, and a file that fails makes it fail.
import * as api from "../api.js";
import { fileAt } from "../path.js";
import { below, joined, partsOf } from "./paths.js";

const SMALL_BYTES = 1 << 20; // so small that its content is asked for before its turn
const AHEAD = 6;
const TRIES = 5; // of the rest of one file
const PAUSE_MS = 600;

// What programs that unpack a zip take as a part of a path, or as another folder.
const safe = (name) => name.replaceAll("\\", "_").replace(/^\.{1,2}$/, "_");

function numbered(name, number) {
  const [, stem, ending] = /^(.+?)(\.[^.]*)?$/s.exec(name);
  return `${stem} (${number})${ending || ""}`;
}

// [{ file, name }] with names below `base`: equal ones get " (2)", as does a file with the name of a folder. Pure.
export function namesIn(files, base) {
  const folderOf = (file) => partsOf(below(file.path || "", base)).map(safe).join("/");
  const taken = new Set();
  for (const file of files) {
    const parts = partsOf(folderOf(file));
    for (const [at] of parts.entries()) taken.add(parts.slice(0, at + 1).join("/"));
  }
  const next = new Map(); // how far the numbers of a name have come
  return files.map((file) => {
    const plain = joined(folderOf(file), safe(file.filename));
    let name = plain;
    let number = next.get(plain) || 2;
    for (; taken.has(name); number += 1) name = joined(folderOf(file), numbered(safe(file.filename), number));
    next.set(plain, number);
    taken.add(name);
    return { file, name };
  });
}

// The zip as a stream of bytes. `tell(bytes, files)`: so much is done. An error of the stream names the file.
export async function zipOf(files, base, { signal, tell }) {
  const { makeZip } = await import("../vendor/client-zip.js");
  return makeZip(entriesOf(namesIn(files, base), { signal, tell }));
}

async function* entriesOf(list, { signal, tell }) {
  const coming = new Map();
  let [bytes, ahead] = [0, 0];
  const count = (length) => (bytes += length);
  for (const [index, { file, name }] of list.entries()) {
    for (; ahead < Math.min(list.length, index + AHEAD); ahead += 1) {
      if (list[ahead].file.size_bytes <= SMALL_BYTES) coming.set(ahead, wholeOf(list[ahead].file, signal));
    }
    tell(bytes, index);
    const input = coming.has(index)
      ? await named(name, coming.get(index))
      : streamed(name, contentOf(file, signal), (length) => tell(count(length), index));
    if (coming.delete(index)) count(file.size_bytes);
    yield { input, name, lastModified: new Date(file.created_at) };
  }
  tell(bytes, list.length);
}

// All bytes of a small file. What fails is told once it is awaited, if it ever is.
function wholeOf(file, signal) {
  const reading = (async () => {
    const parts = [];
    for await (const part of contentOf(file, signal)) parts.push(part);
    return new Uint8Array(await new Blob(parts).arrayBuffer());
  })();
  reading.catch(() => {});
  return reading;
}

async function* streamed(name, content, count) {
  for (;;) {
    const { value, done } = await named(name, content.next());
    if (done) return;
    count(value.length);
    yield value;
  }
}

const named = (name, promise) => promise.catch((error) => {
  if (error.name === "AbortError") throw error;
  throw Object.assign(new Error(`${name}: ${error.message}`), { advice: error.advice, isRefused: error.isRefused });
});

// The content of a file, all of it. A connection that breaks goes on where it was, through another node if need be.
async function* contentOf(file, signal) {
  let at = 0;
  let failures = 0;
  while (at < file.size_bytes) {
    let reader;
    try {
      reader = await readerOf(file, at, signal);
    } catch (error) {
      await pauseBefore(error, (failures += 1), signal);
      continue;
    }
    for (;;) {
      const piece = await reader.read().catch((error) => error);
      if (piece instanceof Error || piece.done) {
        if (at < file.size_bytes) await pauseBefore(piece instanceof Error ? piece : new Error("It ended early."), (failures += 1), signal);
        break;
      }
      at += piece.value.length;
      failures = 0;
      if (at > file.size_bytes) throw new Error("Its content is longer than its record says.");
      yield piece.value;
    }
  }
}

async function readerOf(file, at, signal) {
  const headers = at > 0 ? { Range: `bytes=${at}-` } : {};
  const answer = await api.request("GET", fileAt(file.file_uuid), { headers, signal, raw: true });
  if (at > 0 && answer.status !== 206) throw new api.ApiError(502, "", "The rest of its content cannot be read.");
  return answer.body.getReader();
}

// Waits before the next try. Raises what another try would meet again.
async function pauseBefore(error, failures, signal) {
  const isLasting = error.status >= 400 && error.status < 500 && error.status !== 429;
  if (signal.aborted || isLasting || failures >= TRIES) throw error;
  await new Promise((done) => setTimeout(done, error.waitS ? error.waitS * 1000 : PAUSE_MS * failures));
}
