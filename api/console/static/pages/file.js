// One file of any kind: its record, what is in it, its links, who has access, and what was done with it.
import { html } from "../html.js";
import * as api from "../api.js";
import { download, KINDS, protect, recordAt, remove, rename, share } from "../files.js";
import { moveFile } from "../folders/actions.js";
import { folderAddress } from "../folders/listing.js";
import { counted } from "../format.js";
import { address, fileAt, path } from "../path.js";
import { DEFAULT_BUCKET, useRights } from "../rights.js";
import { go } from "../router.js";
import { isAdmin } from "../session.js";
import { Grants } from "../ui/grants.js";
import { History } from "../ui/history.js";
import { Links } from "../ui/links.js";
import { Manifest } from "../ui/manifest.js";
import { Menu } from "../ui/menu.js";
import { Preview } from "../ui/preview.js";
import { editFields, factsOf } from "../ui/record.js";
import { Action, Badge, Card, Copy, ErrorBox, Facts, Heading, Loading, Name, Size, Time } from "../ui/parts.js";

// The name of a bucket, of those that one may see; else "".
async function bucketName(id, signal) {
  if (id === DEFAULT_BUCKET) return "default";
  names ||= new Map((await api.list(path`buckets`, "buckets", { signal })).rows.map((each) => [each.bucket_id, each.name]));
  return names.get(id) || "";
}

let names = null;

// The record and its kind. Where the address does not say the kind, as one that somebody typed, each is tried.
async function find(id, said, signal) {
  const kinds = Object.hasOwn(KINDS, said) ? [said] : Object.keys(KINDS);
  for (const kind of kinds) {
    try {
      const file = await api.getOne(recordAt(kind, id), "file_uuid", id, { signal });
      return { kind, file, bucket: await bucketName(file.bucket_id, signal) };
    } catch (error) {
      if (error.status !== 404 || kind === kinds.at(-1)) throw error;
    }
  }
  return null;
}

export default function File({ params, query }) {
  const { data, error, refresh } = api.usePolled((signal) => find(params.uuid, query.kind, signal), [params.uuid, query.kind]);
  const { mayOnFile } = useRights();
  if (error && !data) return html`<${Heading} title="File" /><${ErrorBox} error=${error} retry=${refresh} />`;
  if (!data) return html`<${Heading} title="File" /><${Loading} lines=${8} />`;
  const { kind, file, bucket } = data;
  const isHere = file.status === "available";
  const [mayChange, mayAll] = [mayOnFile(file, "write"), mayOnFile(file, "admin")];
  return html`<${Heading} name=${file.filename} title=${html`<${Name}>${file.filename}</${Name}>`}
      sub=${html`One of the <a href="#${KINDS[kind].page}">${KINDS[kind].title.toLowerCase()}</a>. <${Badge} state=${file.status} />`}>
      <${Action} tone="primary" disabled=${!isHere} run=${() => download(file)}>Download</${Action}>
      ${mayAll && html`<${Action} disabled=${!isHere} run=${async () => (await share(file)) && refresh()}>Share…</${Action}>`}
      ${mayChange && html`<${Menu} label="More for this file" text="More ▾" items=${[
        { text: "Rename…", run: async () => (await rename(file, kind)) && refresh() },
        { text: "Move to a folder…", run: async () => (await moveFile(file, kind)) && refresh() },
        { text: "Change its details…", run: async () => (await editFields(file, kind)) && refresh() },
        mayAll && { text: "Protect…", run: async () => (await protect(file)) && refresh() },
        mayAll && { text: "Delete…", tone: "bad", run: async () => (await remove([file])).length > 0 && go(KINDS[kind].page) },
      ]} />`}</${Heading}>
    <${ErrorBox} error=${error} retry=${refresh} />
    <div class="cards"><${Card} title="Record"><${Facts} rows=${[
      ["Size", html`<${Size} bytes=${file.size_bytes} />`],
      ["Type", file.content_type],
      ["Owner", html`<${Name}>${file.owner_id}</${Name}>`],
      ["Bucket", html`<a href=${address`/buckets/${file.bucket_id}`}><${Name}>${bucket || file.bucket_id}</${Name}></a>`],
      ["Folder", file.path && html`<a href=${folderAddress(file.bucket_id, file.path)}><${Name}>${file.path}</${Name}></a>`],
      ["Created", html`<${Time} at=${file.created_at} how="moment" />`],
      ["Changed", html`<${Time} at=${file.updated_at} how="moment" />`],
      ["Kept until", file.expires_at ? html`<${Time} at=${file.expires_at} how="moment" />` : "it is deleted"],
      ["Protected until", file.protected_until && html`<${Time} at=${file.protected_until} how="moment" />`],
      ["SHA-256", file.blob_sha256 && html`<code>${file.blob_sha256}</code> <${Copy} text=${file.blob_sha256} label="Copy the SHA-256" />`],
      ["Id", html`<code>${file.file_uuid}</code> <${Copy} text=${file.file_uuid} label="Copy the id" />`],
    ]} /></${Card}>
    <${Card} title=${`As ${kind === "image" ? "an" : "a"} ${KINDS[kind].noun}`}><${Facts} rows=${factsOf(file, kind)} /></${Card}></div>
    ${isHere && html`<${Replicas} id=${file.file_uuid} />`}
    ${kind === "project" && isHere && html`<${Manifest} file=${file} />`}
    ${isHere && html`<${Preview} file=${file} />`}
    ${mayAll && html`<${Card} title="Links"><${Links} file=${file} /></${Card}>
    <${Card} title="Who has access"><${Grants} on=${fileAt(file.file_uuid)} of="this file" /></${Card}>`}
    ${isAdmin() && html`<${History} file=${file} />`}`;
}

// Which nodes hold the content.
function Replicas({ id }) {
  const { data, error, refresh } = api.usePolled((signal) => api.get(path`${fileAt(id)}/replicas`, { signal }), [id], { everyMs: 20_000 });
  return html`<${Card} title="Replicas"><${ErrorBox} error=${error} retry=${refresh} />
    ${!data && !error && html`<${Loading} lines=${1} />`}
    ${data && html`<p>${counted(data.count, "node holds", "nodes hold")} all of it: ${data.nodes.map((node) => html`<${Badge} tone="good">${node}</${Badge}> `)}</p>`}
  </${Card}>`;
}
