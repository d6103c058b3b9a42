// Asks before a folder or a selection is downloaded as one zip, says how far it is, and where it goes.
import { html } from "../html.js";
import { counted, size } from "../format.js";
import { FormDialog, show } from "../ui/dialog.js";
import { notify } from "../ui/toast.js";
import { amount, Chosen, useFiles } from "./actions.js";
import { zipOf } from "./zip.js";

const HELD_BYTES_MAX = 2e9; // of a zip that a browser holds until it is whole
const ZIP_FILES_MAX = 65_534; // more need another form of the zip, which the library writes for size alone
const REVOKED_MS = 60_000;
const NAME_CHARS_MAX = 100;

const askFirst = (event) => event.preventDefault(); // before the page is left, and the zip with it

const canStream = () => "showSaveFilePicker" in globalThis;

// `rows`: files and folders; names in the zip are those below `base`; `title` names the zip.
export function downloadZip(bucketId, rows, base, title) {
  return show((close) => html`<${Zip} bucketId=${bucketId} rows=${rows} base=${base} title=${title} close=${close} />`);
}

function Zip({ bucketId, rows, base, title, close }) {
  const { files, error } = useFiles(bucketId, rows);
  const whole = (files || []).filter((file) => file.status === "available");
  const left = (files || []).length - whole.length;
  const bytes = whole.reduce((sum, file) => sum + file.size_bytes, 0);
  const isTooLarge = !canStream() && bytes > HELD_BYTES_MAX;
  const isTooMany = whole.length > ZIP_FILES_MAX;
  const name = `${title.replace(/[\\/:*?"<>|\x00-\x1f\x7f]/g, "_").slice(0, NAME_CHARS_MAX)}.zip`;
  async function submit(_, work) {
    const save = canStream() ? await picked(name) : held(name);
    if (!save) return true; // nobody chose where to
    const tell = (done, at) => work.tell(done, bytes || 1, `${size(done)} of ${size(bytes)}, ${at.toLocaleString("en")} of ${counted(whole.length, "file")}`);
    const stopping = new AbortController();
    work.signal.addEventListener("abort", () => stopping.abort());
    addEventListener("beforeunload", askFirst);
    try {
      await save(await zipOf(whole, base, { signal: stopping.signal, tell }), stopping.signal);
    } catch (problem) {
      stopping.abort(); // of what was asked for ahead
      if (work.signal.aborted) throw problem;
      throw Object.assign(new Error(`The zip is not complete and was not saved. ${problem.message}`), { advice: problem.advice });
    } finally {
      removeEventListener("beforeunload", askFirst);
    }
    notify(`${name} is saved: ${amount(whole)}.`, "good");
    return true;
  }
  return html`<${FormDialog} title="Download as a zip" close=${close} action="Download" isReady=${whole.length > 0 && !isTooLarge && !isTooMany} submit=${submit}>
    <${Chosen} rows=${rows} files=${files} error=${error} />
    ${left > 0 && html`<p class="banner warn" role="alert">${counted(left, "file is", "files are")} left out, because ${left === 1 ? "it is" : "they are"} not available.</p>`}
    ${files?.length === 0 && html`<p class="banner warn" role="alert">There is no file in it.</p>`}
    ${isTooMany && html`<p class="banner warn" role="alert">A zip has ${ZIP_FILES_MAX.toLocaleString("en")} files at most. Choose less.</p>`}
    ${isTooLarge
      ? html`<p class="banner warn" role="alert">This browser has to hold the whole zip until it is complete: ${size(HELD_BYTES_MAX)} at most. Choose
        less, use Chrome or Edge, which write it to the disk at once, or <code>filestore get -r</code>.</p>`
      : html`<p class="quiet">${canStream()
        ? "You choose where it is saved, and it is written there while it comes."
        : `This browser holds the zip until it is complete, so that it can have ${size(HELD_BYTES_MAX)} at most.`}${" Keep this page open until it is saved."}</p>`}
  </${FormDialog}>`;
}

// Saves a stream into the file that is chosen; null where none is. A file that was there keeps its content until all is written.
async function picked(name) {
  let handle;
  try {
    handle = await globalThis.showSaveFilePicker({ suggestedName: name, types: [{ description: "Zip", accept: { "application/zip": [".zip"] } }] });
  } catch (error) {
    if (error.name === "AbortError") return null;
    throw error;
  }
  const isNew = (await handle.getFile()).size === 0;
  return async (stream, signal) => {
    try {
      await stream.pipeTo(await handle.createWritable(), { signal });
    } catch (error) {
      if (isNew) await handle.remove?.().catch(() => {});
      throw error;
    }
  };
}

// Saves a stream once all of it is there, as the browser saves any download.
const held = (name) => async (stream) => {
  const zip = await new Response(stream, { headers: { "Content-Type": "application/zip" } }).blob();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(zip);
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), REVOKED_MS);
};
