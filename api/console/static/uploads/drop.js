// Files and folders that are dropped anywhere, or chosen: what they are is guessed, and asked about before they go.
import { html, useLayoutEffect, useRef, useState } from "../html.js";
import { counted } from "../format.js";
import { servesContent } from "../place.js";
import { Dialog, show } from "../ui/dialog.js";
import { notify } from "../ui/toast.js";
import { UploadForm } from "./form.js";

const FILES_MAX = 10_000;

// What is dropped, folders opened: { files, leftOut }, of which at most FILES_MAX are opened, and the others are counted.
// Raises where a folder cannot be read.
async function filesOf(items) {
  const entries = [...items].filter((item) => item.kind === "file").map((item) => item.webkitGetAsEntry?.() || item.getAsFile());
  const found = [];
  let leftOut = 0;
  async function walk(entry) {
    if (!entry) return;
    if (!entry.isDirectory && found.length >= FILES_MAX) leftOut += 1;
    else if (entry instanceof File) found.push(entry);
    else if (entry.isFile) found.push(await new Promise((done, failed) => entry.file(done, failed)));
    else {
      const reader = entry.createReader();
      for (;;) {
        const some = await new Promise((done, failed) => reader.readEntries(done, failed));
        if (some.length === 0) return;
        for (const each of some) await walk(each);
      }
    }
  }
  for (const entry of entries) await walk(entry);
  return { files: found, leftOut };
}

// Asks what is needed of these files and begins their uploads. `leftOut`: how many more were dropped.
export function offer(files, { leftOut = 0, ...options } = {}) {
  if (files.length === 0) {
    notify("You dropped nothing that is a file.", "warn");
    return Promise.resolve();
  }
  if (!servesContent) {
    notify("This page is served by a coordinator. To upload, open the console of a node.", "warn");
    return Promise.resolve();
  }
  const kept = files.slice(0, FILES_MAX);
  const more = leftOut + files.length - kept.length;
  return show((close) => html`<${Dialog} wide close=${close} title=${kept.length === 1 ? "Upload a file" : `Upload ${counted(kept.length, "file")}`}>
    ${more > 0 && html`<p class="banner warn" role="alert">${counted(FILES_MAX, "file")} are uploaded at once at most. ${counted(more, "file")} of
      what you chose ${more === 1 ? "is" : "are"} left out: upload ${more === 1 ? "it" : "them"} afterwards, or use <code>filestore put -r</code>.</p>`}
    <${UploadForm} files=${kept} close=${close} ...${options} /></${Dialog}>`);
}

// The whole window takes what is dropped.
export function DropZone() {
  const [isOver, setIsOver] = useState(false);
  useLayoutEffect(() => {
    let depth = 0;
    const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
    // What is entered last before the drop may be new: unless that takes files, the browser makes a leave of the drop.
    const enter = (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      depth += 1;
      setIsOver(true);
    };
    const leave = (event) => {
      if (hasFiles(event) && (depth -= 1) <= 0) setIsOver(false);
    };
    const over = (event) => hasFiles(event) && event.preventDefault();
    const drop = (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      depth = 0;
      setIsOver(false);
      const bucket = /^#\/buckets\/([0-9a-f-]{36})/.exec(location.hash)?.[1];
      filesOf(event.dataTransfer.items).then(({ files, leftOut }) => offer(files, { bucket, leftOut }), () => notify("The folder cannot be read.", "bad"));
    };
    const listeners = { dragenter: enter, dragleave: leave, dragover: over, drop };
    for (const [name, listener] of Object.entries(listeners)) addEventListener(name, listener);
    return () => {
      for (const [name, listener] of Object.entries(listeners)) removeEventListener(name, listener);
    };
  }, []);
  return isOver && html`<div class="drop-here" aria-hidden="true"><p>Drop to upload</p></div>`;
}

// A button that asks for files, and one for a folder.
export function ChooseFiles({ bucket }) {
  const files = useRef(null);
  const folder = useRef(null);
  const chosen = (event) => {
    const given = [...event.target.files];
    event.target.value = "";
    if (given.length > 0) offer(given, { bucket });
  };
  return html`<button type="button" class="small" onClick=${() => files.current.click()}>Upload files…</button>
    <button type="button" class="small outline" onClick=${() => folder.current.click()}>Upload a folder…</button>
    <input type="file" name="files" multiple hidden ref=${files} onChange=${chosen} />
    <input type="file" name="folder" webkitdirectory hidden ref=${folder} onChange=${chosen} />`;
}
