// Uploads of this tab: they outlive pages, wait for each other, go on after a lost connection and after signing in.
import { createStore, useStore } from "../html.js";
import * as api from "../api.js";
import { inHours } from "../clock.js";
import { KINDS } from "../files.js";
import { fileAt, path } from "../path.js";
import * as place from "../place.js";
import { close, session, token } from "../session.js";
import { notify } from "../ui/toast.js";
import { ContentError, reader, requirePrefix, requireSize, requireUnchanged } from "./content.js";
import { create, newKey, SMALL_BYTES_MAX } from "./creation.js";
import { newMeasure } from "./measure.js";
import { forget, holdLock, remember } from "./memory.js";
import { dropReplaced, readListsSoon } from "./replaced.js";

const AT_ONCE = 3;
const SMALL_AT_ONCE = 5; // with others: a browser has six connections to a node, and one is left for the page
// Between tries of one upload; a node that dies is replaced within some seconds, and may be started again.
const RETRY_MS = [300, 1000, 2000, 4000, 6000, ...Array(14).fill(8000)];
const REFUSALS_MAX = 3; // of one node, before another is asked
const SHOWN_MS = 100; // thousands of small files change dozens of times a second: drawing each change would take longer
const STALLED_MS = 15_000; // without progress: does the node answer at all?

// { id, batch, key, file, filename, size_bytes, kind, fields, file_uuid, state, sent, arrived, isOurs, speed, error, user, note }
// isOurs: what has arrived is of this file. state: waiting, starting, comparing (`arrived` bytes, before it goes on), uploading, retrying, paused, signed out,
// stored, failed, file differs
export const uploads = createStore([], SHOWN_MS);
const running = new Map(); // id -> the tus upload, or what stands for its start
const creating = new Map(); // id -> the promise of what `create` returns
const locks = new Map(); // id -> the function that releases the lock of what is sent
let counted = 0;

export const useUploads = () => useStore(uploads);
export const busy = (all) => all.filter((each) => !["stored", "failed", "file differs"].includes(each.state)).length;

const find = (id) => uploads.get().find((each) => each.id === id);
const change = (id, changes) => uploads.set((all) => all.map((each) => (each.id === id ? { ...each, ...changes } : each)));

// Queue files: [{ file, kind, fields, replaces }], `replaces`: ids of files to delete once it is stored. Or one that has begun, with file_uuid and size_bytes.
export function add(files) {
  const batch = (counted += 1);
  const added = files.map(({ file, kind, fields, replaces = [], file_uuid = "", size_bytes = file.size }) => ({
    id: (counted += 1),
    ...{ batch, file, kind, fields, replaces, file_uuid, filename: fields.filename, size_bytes },
    ...{ key: "", state: "waiting", sent: 0, arrived: 0, isOurs: false, speed: 0, error: null, user: session.get().user?.user_id },
  }));
  uploads.set((all) => [...all, ...added]);
  next();
}

function next() {
  const { user } = session.get();
  if (!user) return;
  for (const each of uploads.get()) {
    if (running.size >= SMALL_AT_ONCE) return;
    const isTurn = running.size < AT_ONCE || each.size_bytes <= SMALL_BYTES_MAX;
    if (isTurn && each.state === "waiting" && each.user === user.user_id && !running.has(each.id)) start(each.id);
  }
}

async function start(id) {
  const turn = {};
  running.set(id, turn);
  change(id, { state: "starting", error: null, key: find(id).key || newKey() });
  try {
    requireSize(find(id).file, find(id).size_bytes);
    const { file_uuid: fileUuid, isStored } = await created(id);
    if (running.get(id) !== turn) return; // paused or given up meanwhile
    if (isStored) return stored(id);
    // Both before the node of the page may die. tus defines globalThis.tus.
    await Promise.all([import("../vendor/tus.js"), import("../vendor/noble-sha2.js")]);
    if (running.get(id) === turn) send(id, find(id).file, fileUuid);
  } catch (error) {
    if (running.get(id) === turn) failed(id, error);
  }
}

// The { file_uuid, isStored } of an upload, whose record is made once, whatever is paused and begun again meanwhile.
function created(id) {
  const { file, filename, kind, fields, key, file_uuid: known, user } = find(id);
  if (known) return { file_uuid: known };
  if (!creating.has(id)) {
    const make = async () => {
      const isWanted = () => find(id)?.state === "starting" && session.get().user?.user_id === user;
      const made = await create(KINDS[kind].path, fields, file, { key, isWanted });
      const { file_uuid, isStored } = made;
      if (!isStored) remember({ file_uuid, filename, size_bytes: file.size, kind, user, begun_at: inHours(0).toISOString() });
      change(id, { file_uuid });
      return made;
    };
    creating.set(id, make().finally(() => creating.delete(id)));
  }
  return creating.get(id);
}

function send(id, file, fileUuid) {
  const measure = newMeasure();
  const { url } = path`${fileAt(fileUuid)}/content`;
  const upload = new globalThis.tus.Upload(file, {
    uploadUrl: `${place.origin()}${url}`,
    retryDelays: RETRY_MS,
    storeFingerprintForResuming: false,
    fileReader: reader,
    onAfterResponse: (request, response) => request.getMethod() === "HEAD" && response.getStatus() === 200 ? compare(id, upload, response) : undefined,
    onBeforeRequest: (request) => request.setHeader("Authorization", `Bearer ${token()}`),
    onShouldRetry: (error, attempt) => {
      if (error.causingError instanceof ContentError) return false;
      const status = error.originalResponse?.getStatus() || 0;
      const isTried = !isRefused(error.originalResponse) && (status === 0 || status >= 500 || [408, 409, 423, 429].includes(status));
      // Any node takes what comes next; one that only refuses may be cut off from the others. A file that was changed
      // on the disk ends a request in the same way, and says nothing of the node: the next try says so.
      const from = new URL(upload.url).origin;
      if (status === 0) requireUnchanged(file).then(() => place.leave(from), () => {});
      else if (status >= 500 && attempt >= REFUSALS_MAX) place.leave(from);
      upload.url = `${place.origin()}${url}`;
      if (isTried) change(id, { state: "retrying", speed: 0 });
      return isTried;
    },
    onProgress: (sent) => {
      const speed = measure(sent);
      if (speed !== undefined) change(id, { sent, speed, state: "uploading" });
    },
    onSuccess: () => {
      forget(fileUuid);
      stored(id);
    },
    onError: (error) => failed(id, asApiError(error)),
  });
  running.set(id, upload);
  locks.set(id, holdLock(fileUuid));
  change(id, { state: "uploading" });
  upload.start();
  watch(id, upload, url, measure);
}

function stored(id) {
  change(id, { state: "stored", sent: find(id).size_bytes, speed: 0, file: null });
  ended(id);
  tellStored(find(id));
  dropReplaced(find(id));
  readListsSoon();
}

// One notice for all files that were chosen together, when the last of them has ended.
function tellStored({ batch, filename }) {
  const all = uploads.get().filter((each) => each.batch === batch);
  if (all.length === 1) notify(`${filename} is stored.`, "good");
  else if (busy(all) === 0) {
    const stored = all.filter((each) => each.state === "stored").length;
    const isAll = stored === all.length;
    const [some, whole] = [stored, all.length].map((count) => count.toLocaleString("en"));
    notify(isAll ? `${some} files are stored.` : `${some} of ${whole} files are stored: see Uploads.`, isAll ? "good" : "warn");
  }
}

// Before an upload goes on, whatever cut it: is what has arrived the beginning of this file? Raises ContentError.
async function compare(id, upload, response) {
  const arrived = Number(response.getHeader("Upload-Offset"));
  const { file, isOurs } = find(id);
  const goesOn = (sent) => {
    if (running.get(id) !== upload) return false;
    change(id, { state: "comparing", sent, arrived, speed: 0 });
    return true;
  };
  await requirePrefix(file, arrived, response.getHeader("Upload-Prefix-Digest"), { isOurs, goesOn, run: upload });
  if (running.get(id) === upload) change(id, { state: "uploading", sent: arrived, isOurs: true });
}

// A machine that lost its power breaks no connection: an upload that stands still asks whether its node lives.
async function watch(id, upload, url, measure) {
  let seen = -1;
  for (;;) {
    await new Promise((done) => setTimeout(done, STALLED_MS));
    if (running.get(id) !== upload) return;
    if (find(id).state === "comparing") continue;
    const from = new URL(upload.url).origin;
    const isStill = measure.sent() === seen;
    seen = measure.sent();
    if (!isStill || place.originsCount === 1 || (await place.answers(from)) || running.get(id) !== upload) continue;
    await upload.abort();
    await place.leave(from);
    upload.url = `${place.origin()}${url}`;
    change(id, { state: "retrying", speed: 0 });
    upload.start();
  }
}

// Whether the token is not taken, which is told by 401, or by 429 after too many tries from this address.
const isRefused = (response) => response?.getStatus() === 401 || Boolean(response?.getHeader("WWW-Authenticate"));

function asApiError(error) {
  if (error.causingError instanceof ContentError) return error.causingError;
  const response = error.originalResponse;
  if (!response) return new api.ApiError(0, "network", "No response was received.");
  const more = { isRefused: isRefused(response) };
  try {
    const { code, details, error: title } = JSON.parse(response.getBody());
    return new api.ApiError(response.getStatus(), code, details || title, response.getHeader("X-Request-Id") || "", more);
  } catch {
    // An answer to HEAD has no body.
    return new api.ApiError(response.getStatus(), "", `The answer was ${response.getStatus()}.`, "", more);
  }
}

function failed(id, error) {
  const each = find(id);
  ended(id, false);
  if (!each || each.state === "paused") return;
  if (error.isRefused) {
    change(id, { state: "signed out", speed: 0, error: null });
    close("Your token has expired or was revoked. Sign in again, and your uploads resume automatically.");
    return;
  }
  if (error.status === 404 || error.status === 410) forget(each.file_uuid);
  change(id, { state: error instanceof ContentError ? "file differs" : "failed", speed: 0, error });
  if (uploads.get().some((other) => other.batch === each.batch && other.state === "stored")) tellStored(each);
  next();
}

function ended(id, isNextBegun = true) {
  stopped(id);
  if (isNextBegun) next();
}

function stopped(id) {
  running.delete(id);
  locks.get(id)?.();
  locks.delete(id);
}

export async function pause(id) {
  const upload = running.get(id);
  change(id, { state: "paused", speed: 0 });
  await upload?.abort?.();
  ended(id);
}

export function resume(id) {
  change(id, { state: "waiting", error: null });
  next();
}

// Goes on with this file in place of one that differs from what has arrived.
export function replace(id, file) {
  change(id, { file, isOurs: false });
  resume(id);
}

// Whether all bytes of a content that is not this file's had arrived: nothing is left to be given up.
export const isStored = ({ state, error, size_bytes }) => state === "stored" || (error?.arrived || -1) === size_bytes;

// Ends an upload for good: what has come is dropped.
export async function giveUp(id) {
  const each = find(id);
  const upload = running.get(id);
  const isDropped = !isStored(each);
  change(id, { state: "paused" });
  await upload?.abort?.();
  ended(id);
  const fileUuid = each.file_uuid || (await creating.get(id)?.catch(() => null))?.file_uuid;
  if (fileUuid && isDropped) await discard(fileUuid);
  uploads.set((all) => all.filter((other) => other.id !== id));
}

// The same of one that this tab does not have. A file that has its content is kept: another tab has stored it meanwhile.
export async function discard(fileUuid) {
  await api.del(fileAt(fileUuid), { headers: { "If-None-Match": "*" } }).catch((error) => {
    if (error.status === 412) Object.assign(error, { message: "This upload is already complete: the file is stored.", advice: "If the file is not needed, delete it in its list." });
    if (error.status !== 404 && error.status !== 410) throw error;
  });
  forget(fileUuid);
}

export const clearStored = () => uploads.set((all) => all.filter((each) => each.state !== "stored"));

export const isBusy = () => busy(uploads.get()) > 0;

// A user who signs in again goes on with their own uploads. Nobody sends what another user began: requests carry the
// token of whoever is signed in.
session.subscribe(({ user }) => {
  for (const [id, upload] of running) {
    if (find(id)?.user === user?.user_id) continue;
    stopped(id);
    upload.abort?.();
    change(id, { state: "signed out", speed: 0, error: null });
  }
  if (!user) return;
  uploads.set((all) =>
    all.map((each) => (each.state === "signed out" && each.user === user.user_id ? { ...each, state: "waiting" } : each)),
  );
  next();
});

addEventListener("beforeunload", (event) => {
  if (isBusy()) event.preventDefault();
});
