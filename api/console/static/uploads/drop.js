// Files and folders that are dropped anywhere, or chosen: what they are is guessed, and asked about before they go.
import { html, useLayoutEffect, useRef, useState } from "../html.js";
import { counted } from "../format.js";
import { servesContent } from "../place.js";
import { current } from "../router.js";
import { Dialog, show } from "../ui/dialog.js";
import { notify } from "../ui/toast.js";
import { UploadForm } from "./form.js";
import { chosenIn, droppedIn, FILES_MAX } from "./tree.js";

// Asks what is needed of these files, [{ file, folder }], and begins their uploads. `bucket`, `folder`: where they go.
// `leftOut`, `isTree`, `empty`, `unread`: as `droppedIn` found them.
export function offer(files, { leftOut = 0, isTree, empty = 0, unread = [], ...options } = {}) {
  if (files.length === 0) {
    notify(isTree ? "There is no file in this folder." : "You dropped nothing that is a file.", "warn");
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
    ${isTree && html`<p class="quiet">Each file keeps its folder. Links and empty folders are not uploaded${empty > 0 ? `: ${counted(empty, "folder is", "folders are")} empty` : ""}.</p>`}
    ${unread.length > 0 && html`<p class="banner warn" role="alert">${counted(unread.length, "entry", "entries")} cannot be read and ${unread.length === 1 ? "is" : "are"}
      left out: ${unread.slice(0, 3).join(", ")}${unread.length > 3 ? ", …" : ""}</p>`}
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
      const { path, query } = current();
      const bucket = /^\/buckets\/([0-9a-f-]{36})$/.exec(path)?.[1];
      const folder = bucket && query.folder;
      droppedIn(event.dataTransfer.items).then(({ files, ...rest }) => offer(files, { bucket, folder, ...rest }));
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
export function ChooseFiles({ bucket, folder: at }) {
  const files = useRef(null);
  const folder = useRef(null);
  const chosen = (event) => {
    const { files: given, isTree } = chosenIn(event.target);
    event.target.value = "";
    if (given.length > 0) offer(given, { bucket, folder: at, isTree });
  };
  return html`<button type="button" class="small" onClick=${() => files.current.click()}>Upload files…</button>
    <button type="button" class="small outline" onClick=${() => folder.current.click()}>Upload a folder…</button>
    <input type="file" name="files" multiple hidden ref=${files} onChange=${chosen} />
    <input type="file" name="folder" webkitdirectory hidden ref=${folder} onChange=${chosen} />`;
}
