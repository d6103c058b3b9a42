// The first page: how the cluster is, what is going on, and one's own files.
import { html } from "../html.js";
import * as api from "../api.js";
import { fileAddress, KINDS } from "../files.js";
import { counted, size } from "../format.js";
import { REPORTS } from "../lab-alarms.js";
import { address, path } from "../path.js";
import { useRights } from "../rights.js";
import { isAdmin, session } from "../session.js";
import { ChooseFiles } from "../uploads/drop.js";
import { useUploads } from "../uploads/engine.js";
import { ClusterOverview } from "../ui/cluster-overview.js";
import { RESTIC } from "../ui/file-list.js";
import { Badge, Card, Empty, ErrorBox, Heading, Loading, Name, Size, Time } from "../ui/parts.js";
import { Quota } from "./buckets.js";
import { servesContent } from "../place.js";

const RECENT = 8;

// Per kind: how many, how large, and the latest of all.
async function ownFiles(signal) {
  const own = session.get().user.user_id;
  const kinds = [];
  let all = [];
  for (const [kind, { path: listed, field, title, page }] of Object.entries(KINDS)) {
    const { rows, isCut } = await api.list(listed, field, { signal });
    const mine = rows.filter((row) => row.owner_id === own);
    kinds.push({ title, page, count: rows.length, mine: mine.length, isCut, bytes: mine.reduce((sum, row) => sum + (row.status === "available" ? row.size_bytes : 0), 0) });
    all = all.concat(rows.map((row) => ({ ...row, kind })));
  }
  const recent = all.filter((row) => ![RESTIC, REPORTS].some((each) => row.filename.startsWith(each))).sort((a, b) => (a.created_at < b.created_at ? 1 : -1)).slice(0, RECENT);
  return { kinds, recent, bytes: kinds.reduce((sum, each) => sum + each.bytes, 0), mine: kinds.reduce((sum, each) => sum + each.mine, 0) };
}

export default function Overview() {
  const files = api.usePolled(ownFiles, [], { everyMs: 20_000 });
  const buckets = api.usePolled((signal) => api.list(path`buckets`, "buckets", { signal, rowsMax: 1000 }), [], { everyMs: 30_000 });
  const here = useUploads().filter((each) => !["stored", "failed"].includes(each.state));
  const user = session.get().user;
  const { mayOnBucket } = useRights();
  return html`<${Heading} title="Overview" sub=${html`Welcome, <${Name}>${user.user_id}</${Name}>.`}>
      ${servesContent && html`<${ChooseFiles} />`}</${Heading}>
    ${isAdmin() && html`<${ClusterOverview} />`}
    ${here.length > 0 && html`<p class="banner">${counted(here.length, "upload")} under way: <a href="#/uploads">see how far they are</a>.</p>`}
    <${ErrorBox} error=${files.error || buckets.error} retry=${() => (files.refresh(), buckets.refresh())} />
    <div class="cards"><${Card} title="Your files">${files.data ? html`<p class="big">${counted(files.data.mine, "file")}${" "}<span class="quiet">${size(files.data.bytes)}</span></p>
        <ul class="plain-list">${files.data.kinds.map((each) => html`<li class="spread"><a href="#${each.page}">${each.title}</a>
          <span><span class="number">${each.mine.toLocaleString("en")}</span>${each.count > each.mine ? html` <span class="quiet">and${" "}
          ${(each.count - each.mine).toLocaleString("en")} of others</span>` : ""}</span></li>`)}</ul>`
      : html`<${Loading} lines=${4} />`}</${Card}>
    <${Card} title="Buckets" actions=${html`<a href="#/buckets">All</a>`}>${buckets.data ? html`<ul class="plain-list">${buckets.data.rows.slice(0, RECENT).map(
      (bucket) => html`<li class="spread"><a href=${address`/buckets/${bucket.bucket_id}`}><${Name}>${bucket.name}</${Name}></a><${Quota} bucket=${bucket} mayRead=${mayOnBucket(bucket, "read")} /></li>`)}</ul>`
      : html`<${Loading} lines=${4} />`}</${Card}></div>
    <${Card} title="Latest files">${!files.data ? html`<${Loading} lines=${5} />` : files.data.recent.length === 0
      ? html`<${Empty} title="No files yet.">Drop a project, a disk image or any other file anywhere on this page.</${Empty}>`
      : html`<ul class="plain-list recent">${files.data.recent.map((file) => html`<li class="spread"><span class="one-line"><a
        href=${fileAddress(file)}><${Name}>${file.filename}</${Name}></a> <span class="quiet">${KINDS[file.kind].noun}</span></span>
        <span class="right">${file.status !== "available" && html`<${Badge} state=${file.status} /> `}<${Size} bytes=${file.size_bytes} />
        <${Time} at=${file.created_at} /></span></li>`)}</ul>`}</${Card}>`;
}
