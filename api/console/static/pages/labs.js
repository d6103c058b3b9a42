// GNS3 labs: which projects of which servers have backups, and how good the newest is.
import { html } from "../html.js";
import * as api from "../api.js";
import { goodOf, labsOf, lookAtLabs } from "../labs.js";
import { address, path } from "../path.js";
import { DataTable } from "../ui/table.js";
import { Badge, Empty, Heading, Name, Size, Time } from "../ui/parts.js";

export const labAddress = ({ newest }) => address`/labs/${newest.serverId}/${newest.project_id}?owner=${newest.owner_id}`;

// The verdict on a lab: whether its newest version is whole, as the cluster knows.
export function LabState({ lab, whole }) {
  if (!(lab.newest.file_uuid in (whole || {}))) return html`<span class="quiet">not checked</span>`;
  if (whole[lab.newest.file_uuid]) return html`<${Badge} tone="good">whole</${Badge}>`;
  const told = goodOf(lab, whole) ? "No node holds the newest version whole; an older one is whole" : "No node holds any of the newest versions whole";
  return html`<${Badge} tone=${goodOf(lab, whole) ? "warn" : "bad"} title=${told}>damaged</${Badge}>`;
}

export default function Labs() {
  const list = api.useList(path`project-files`, "project_files", { status: "available" });
  const labs = labsOf(list.rows);
  const newest = labs.map((lab) => lab.newest.file_uuid).join();
  const { data: whole } = api.usePolled((signal) => lookAtLabs(labs, signal), [newest], { isLive: false });
  const servers = new Map(labs.map((lab) => [lab.newest.serverId, `${lab.newest.server} (${lab.newest.serverId})`]));
  const good = (lab) => (lab.newest.file_uuid in (whole || {}) ? goodOf(lab, whole)?.created_at || "" : lab.newest.created_at);
  const columns = [
    { key: "name", title: "Project", value: (lab) => lab.name, render: (lab) => html`<a href=${labAddress(lab)}><${Name} title=${lab.newest.project_id}>${lab.name}</${Name}></a>` },
    { key: "server", title: "Server", width: "9rem", hide: "medium", value: (lab) => lab.newest.server, render: (lab) => html`<${Name} title=${lab.newest.serverId}>${lab.newest.server}</${Name}>` },
    { key: "good", title: "Last good", width: "8rem", small: "5.8rem", value: good, render: (lab) => html`<${Time} at=${good(lab)} none="none" />` },
    { key: "archive", title: "Kind", width: "5.5rem", hide: "wide", value: (lab) => lab.newest.archive, render: (lab) => lab.newest.archive },
    { key: "size", title: "Size", width: "6.5rem", hide: "narrow", align: "end", value: (lab) => lab.newest.size_bytes, render: (lab) => html`<${Size} bytes=${lab.newest.size_bytes} />` },
    { key: "versions", title: "Versions", width: "6.2rem", hide: "medium", align: "end", value: (lab) => lab.versions.length, render: (lab) => lab.versions.length.toLocaleString("en") },
    { key: "state", title: "State", width: "7.5rem", small: "5.9rem", sortable: false, render: (lab) => html`<${LabState} lab=${lab} whole=${whole} />` },
  ];
  return html`<${Heading} title="Labs" sub="Projects of GNS3 servers that have backups, and how good the newest one is." />
    <${DataTable} label="Labs" noun="lab" rows=${labs} keyOf=${(lab) => lab.key} columns=${columns} sort=${{ key: "good", down: true }}
      search=${{ label: "Search by project, tag or message", text: (lab) => `${lab.name} ${lab.newest.project_id} ${lab.versions.map((v) => `${v.tag} ${v.message}`).join(" ")}` }}
      filters=${servers.size > 1 ? [{ key: "server", title: "Server", options: [...servers], accept: (lab, value) => lab.newest.serverId === value }] : []}
      isLoading=${list.isLoading} error=${list.error} refresh=${list.refresh}
      empty=${html`<${Empty} title="No labs yet.">Back up the projects of a GNS3 server with <code>filestore gns3 backup</code>. <a href="#/help/gns3">How to</a></${Empty}>`} />`;
}
