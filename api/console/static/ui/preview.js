// A look into a file: text, JSON and pictures, up to a bound. Nothing of it is run, or loaded from elsewhere.
import { html, useEffect, useState } from "../html.js";
import * as api from "../api.js";
import { fileAt } from "../path.js";
import { servesContent } from "../place.js";
import { size } from "../format.js";
import { Card, ErrorBox, Loading } from "./parts.js";

const TEXT_BYTES_MAX = 64 * 1024;
const PRETTY_CHARS_MAX = 4 * TEXT_BYTES_MAX; // indenting grows with the square of the depth
const PICTURE_BYTES_MAX = 8_000_000;
const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const TEXTS = /^(text\/|application\/(json|xml|x-sh|x-yaml|toml))/;
const TEXT_NAMES = /\.(txt|md|json|ya?ml|xml|csv|log|cfg|conf|ini|toml|sh|py|js|html?)$/i;

function kindOf(file) {
  const type = file.content_type.split(";")[0].trim().toLowerCase();
  if (PICTURES.includes(type)) return file.size_bytes <= PICTURE_BYTES_MAX ? "picture" : "";
  return TEXTS.test(type) || TEXT_NAMES.test(file.filename) ? "text" : "";
}

export function Preview({ file }) {
  const kind = kindOf(file);
  const [shown, setShown] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    if (!kind || !servesContent || file.size_bytes === 0) return undefined;
    const aborting = new AbortController();
    let url = "";
    const show = async () => {
      const headers = kind === "text" ? { Range: `bytes=0-${TEXT_BYTES_MAX - 1}` } : {};
      const answer = await api.request("GET", fileAt(file.file_uuid), { headers, signal: aborting.signal, raw: true });
      const bytes = await answer.arrayBuffer();
      if (aborting.signal.aborted) return;
      if (kind === "text") setShown(pretty(new TextDecoder().decode(bytes), file));
      else {
        url = URL.createObjectURL(new Blob([bytes], { type: file.content_type }));
        setShown(url);
      }
    };
    show().catch((problem) => problem.name !== "AbortError" && setError(problem));
    return () => {
      aborting.abort();
      if (url) URL.revokeObjectURL(url);
    };
  }, [file.file_uuid, file.blob_sha256]);
  if (!kind || !servesContent) return null;
  if (file.size_bytes === 0) return html`<${Card} title="Preview"><p class="quiet">The file is empty.</p></${Card}>`;
  return html`<${Card} title="Preview"><${ErrorBox} error=${error} />
    ${!shown && !error && html`<${Loading} lines=${4} />`}
    ${shown && kind === "picture" && html`<img class="picture" src=${shown} alt="The picture in this file" />`}
    ${shown && kind === "text" && html`<pre class="text" tabindex="0" aria-label="The beginning of the file">${shown}</pre>
      ${file.size_bytes > TEXT_BYTES_MAX && html`<p class="quiet">The first ${size(TEXT_BYTES_MAX)} of ${size(file.size_bytes)}.</p>`}`}
  </${Card}>`;
}

function pretty(text, file) {
  if (file.size_bytes > TEXT_BYTES_MAX || !/json/.test(file.content_type)) return text;
  try {
    const indented = JSON.stringify(JSON.parse(text), null, 2);
    return indented.length > PRETTY_CHARS_MAX ? text : indented;
  } catch {
    return text;
  }
}
