// Files that an upload replaces: they are deleted, once the new one can be read.
import * as api from "../api.js";
import { recordAt } from "../files.js";
import { fileAt } from "../path.js";
import { session } from "../session.js";
import { notify } from "../ui/toast.js";

const AVAILABLE_MS = 1000; // between two looks at the new one
const AVAILABLE_TRIES = 60;
const LISTS_MS = 300; // of files that are stored shortly after each other, lists show several at once
const LISTS_AGAIN_MS = 2000; // between two looks, while many files arrive

// An upload that is stored, with `replaces`: the ids of the old files. What cannot be deleted is told.
export async function dropReplaced({ replaces, kind, file_uuid, filename, user }) {
  if (replaces.length === 0) return;
  try {
    await becomesAvailable(kind, file_uuid);
    for (const old of replaces) {
      if (session.get().user?.user_id !== user) throw new Error("You signed out.");
      await api.del(fileAt(old)).catch((error) => {
        if (error.status !== 404) throw error;
      });
    }
  } catch (error) {
    notify(`${filename} is stored, and the old file of this name is kept. ${error.message}`, "bad");
  }
  readListsSoon();
}

let timer = 0;
let readAt = -Infinity;

// Lists are read again.
export function readListsSoon() {
  timer ||= setTimeout(() => {
    timer = 0;
    readAt = performance.now();
    dispatchEvent(new Event("filestore:stored"));
  }, Math.max(LISTS_MS, readAt + LISTS_AGAIN_MS - performance.now()));
}

async function becomesAvailable(kind, id) {
  for (let tries = 0; tries < AVAILABLE_TRIES; tries += 1) {
    if ((await api.get(recordAt(kind, id))).status === "available") return;
    await new Promise((done) => setTimeout(done, AVAILABLE_MS));
  }
  throw new Error("The new one cannot be read yet.");
}
