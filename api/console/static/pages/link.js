// What somebody without an account sees of a public link: what it is, from whom, until when, and one button.
import { html, useEffect, useState } from "../html.js";
import { errorOf } from "../api.js";
import { moment, size } from "../format.js";
import { Mark, ThemeMenu } from "../layout.js";
import { path } from "../path.js";
import { nodeConsole, servesContent } from "../place.js";
import { Copy, ErrorBox, Facts, Loading, Name } from "../ui/parts.js";

const ENDED = "This link has ended, or was revoked.";

async function look(url) {
  const response = await fetch(url, { method: "HEAD", credentials: "omit", cache: "no-store" });
  if (!response.ok) {
    const error = await errorOf(response);
    error.message = { 404: "There is no such link.", 410: ENDED, 429: "There were too many attempts from your network." }[error.status] || "The file is not available now.";
    error.advice = { 404: "Check that you have all of it.", 410: "Ask the person who sent it for another one." }[error.status]
      || "Wait a minute, then reload the page.";
    throw error;
  }
  const field = (name) => response.headers.get(name) || "";
  const named = /filename\*=UTF-8''([^;]+)/i.exec(field("Content-Disposition"));
  const plain = /filename="((?:[^"\\]|\\.)*)"/i.exec(field("Content-Disposition"));
  return {
    name: named ? decodeURIComponent(named[1]) : (plain?.[1] || "file").replace(/\\(.)/g, "$1"),
    size: Number(field("Content-Length")),
    type: field("Content-Type"),
    sha256: field("ETag").replace(/"/g, ""),
    sharedBy: field("Shared-By"),
    endsAt: field("Link-Expires"),
  };
}

export default function Link({ params }) {
  const url = path`public/files/${params.uuid}/${params.token}`.url;
  const [file, setFile] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    document.title = "A shared file · Filestore";
    if (!servesContent) location.replace(nodeConsole());
    else look(url).then(setFile, (problem) => setError(problem.status ? problem : { message: "No answer came.", advice: "Look at your network, then load the page again." }));
  }, [url]);
  return html`<main class="alone shared"><div class="corner"><${ThemeMenu} /></div><p class="brand"><${Mark} />Filestore</p>
    ${error && html`<h1>${error.status === 404 ? "No such link" : error.status === 410 ? "This link has ended" : "A shared file"}</h1><${ErrorBox} error=${error} />`}
    ${!file && !error && html`<h1>A shared file</h1><${Loading} lines=${4} />`}
    ${file && html`<h1 class="wraps"><${Name}>${file.name}</${Name}></h1>
      <p>${file.sharedBy ? html`<${Name}>${file.sharedBy}</${Name}> shares this file with you` : "This file is shared with you"}${file.endsAt
        ? html`, until <strong>${moment(file.endsAt)}</strong>` : ""}.</p>
      <p><a role="button" class="download" href=${url} download=${file.name} rel="noreferrer">Download, ${size(file.size)}</a></p>
      <${Facts} rows=${[
        ["Size", `${file.size.toLocaleString("en")} bytes`],
        ["Type", file.type],
        ["SHA-256", html`<code>${file.sha256}</code> <${Copy} text=${file.sha256} label="Copy the SHA-256" />`],
      ]} /><p class="quiet">Compare the SHA-256 of what you downloaded to be sure that it came whole: <code>sha256sum FILE</code>.</p>`}
  </main>`;
}
