// The path of a folder in a form, with the folders that exist below what is typed: a click opens one.
import { html, useEffect, useState } from "../html.js";
import * as api from "../api.js";
import { bucketAt, path } from "../path.js";
import { Name } from "../ui/parts.js";
import { joined, nameOf, parentOf } from "./paths.js";

const PAUSE_MS = 200; // while somebody types
const SHOWN_MAX = 100;

// The folders in what is typed; if there are none, those whose names begin with it.
async function found(bucketId, typed, signal) {
  const listed = async (folder) => (await api.get(path`${bucketAt(bucketId)}/folders`, { query: { path: folder, limit: SHOWN_MAX }, signal })).folders;
  const inside = await listed(typed);
  if (inside.length > 0 || !typed) return inside;
  return (await listed(parentOf(typed))).filter((each) => each.name.startsWith(nameOf(typed)) && each.path !== typed);
}

export function FolderField({ bucketId, value, label = "Folder" }) {
  const [text, setText] = useState(value);
  const [folders, setFolders] = useState([]);
  const typed = joined(text);
  useEffect(() => {
    const asking = new AbortController();
    const timer = setTimeout(() => found(bucketId, typed, asking.signal).then(setFolders, () => {}), PAUSE_MS);
    return () => {
      clearTimeout(timer);
      asking.abort();
    };
  }, [bucketId, typed]);
  return html`<label>${label}<input name="folder" value=${text} maxlength="1024" placeholder="the top of the bucket" autofocus autocomplete="off"
      spellcheck="false" onInput=${(event) => setText(event.target.value)} /></label>
    <ul class="folder-choice" aria-label="Existing folders">
      ${typed && html`<li><button type="button" class="small outline" onClick=${() => setText(parentOf(typed))}>↑ Up</button></li>`}
      ${folders.map((each) => html`<li key=${each.path}><button type="button" class="small outline" onClick=${() => setText(each.path)}><${Name} title=${each.path}>${each.name}</${Name}></button></li>`)}
    </ul>`;
}
