// What a project's archive holds, and whether the images that it needs are here.
import { html } from "../html.js";
import * as api from "../api.js";
import { fileAddress, recordAt } from "../files.js";
import { path } from "../path.js";
import { Badge, Card, ErrorBox, Facts, Loading, Name } from "./parts.js";

const IMAGES_LOOKED_UP = 60;

async function look(file, signal) {
  const manifest = await api.get(path`${recordAt("project", file.file_uuid)}/manifest`, { signal });
  const images = [];
  for (const [index, image] of manifest.images.entries()) {
    let found = null;
    if (image.md5 && index < IMAGES_LOOKED_UP) {
      const { vms } = await api.get(path`vms`, { query: { md5: image.md5, limit: 1 }, signal });
      found = vms[0] || false;
    }
    images.push({ ...image, found });
  }
  return { ...manifest, images };
}

const WORDS = { gns3: "a GNS3 project", damaged: "a project whose archive is damaged", other: "not a GNS3 project, as far as it was examined" };

export function Manifest({ file }) {
  const { data, error, refresh } = api.usePolled((signal) => look(file, signal), [file.file_uuid], { isLive: false });
  return html`<${Card} title="In the archive"><${ErrorBox} error=${error} retry=${refresh} />
    ${!data && !error && html`<${Loading} lines=${3} />`}
    ${data && html`<${Facts} rows=${[
      ["It is", WORDS[data.archive] || data.archive],
      ["Project", data.project_name && html`<${Name}>${data.project_name}</${Name}>`],
      ["Format", data.format_version],
    ]} />${data.images.length > 0 && html`<h3>Images that it needs</h3><ul class="plain-list">${data.images.map((image) => html`<li>
      <${Name}>${image.filename}</${Name}> ${state(image)}</li>`)}</ul>`}
      ${data.images.some((image) => image.found === false) && html`<p class="quiet">To open the project, the missing images are needed too: upload them,
        or ask their owner to give you access.</p>`}
      ${data.archive === "gns3" && data.images.length === 0 && html`<p class="quiet">It needs no images.</p>`}
      ${data.truncated && html`<p class="quiet">Only a part of the archive was examined. It may need more.</p>`}`}
  </${Card}>`;
}

function state(image) {
  if (image.found) return html`<${Badge} tone="good">found</${Badge}> <a href=${fileAddress(image.found, "image")}><${Name}>${image.found.filename}</${Name}></a>`;
  if (image.found === false) return html`<${Badge} state="missing" title="No image with the MD5 ${image.md5} is visible to you" />`;
  return html`<${Badge} title="The archive does not say its MD5">unknown</${Badge}>`;
}
