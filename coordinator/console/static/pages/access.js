// Who has access to what: permissions on buckets, and on files.
import { html } from "../html.js";
import * as api from "../api.js";
import { isOver, take } from "../ui/grants.js";
import { useScan } from "../ui/scan.js";
import { DataTable } from "../ui/table.js";
import { Action, Badge, Card, Empty, Heading, Name, Time } from "../ui/parts.js";
import { mayAdminister } from "./buckets.js";
import { Scanned } from "./shares.js";

const LEVELS = [["read", "read"], ["write", "write"], ["admin", "admin"]];
const KINDS_OF_PRINCIPAL = [["user", "user"], ["group", "group"], ["role", "role"]];

const ofFile = async (file, signal) => (await api.list(`files/${file.file_uuid}/permissions`, "permissions", { signal })).rows;

async function ofBuckets(signal) {
  const { rows: buckets } = await api.list("buckets", "buckets", { signal });
  const found = [];
  for (const bucket of buckets.filter(mayAdminister)) {
    const { rows } = await api.list(`buckets/${bucket.bucket_id}/permissions`, "permissions", { signal });
    found.push(...rows.map((row) => ({ ...row, bucket })));
  }
  return found;
}

function table({ label, rows, place, pathOf, nameOf, changed, empty, ...rest }) {
  const columns = [
    { key: "place", title: label === "On buckets" ? "Bucket" : "File", value: nameOf, render: place },
    { key: "principal_id", title: "Who", width: "9rem", small: "5rem", render: (e) => html`<${Name}>${e.principal_id}</${Name}>` },
    { key: "principal_type", title: "Is a", width: "5.5rem", hide: "narrow" },
    { key: "permission", title: "May", width: "5.5rem", hide: "narrow", render: (e) => html`<${Badge} state=${e.permission} />` },
    { key: "expires_at", title: "Ends", width: "8rem", hide: "narrow", render: (e) => isOver(e) ? html`<${Badge} state="expired" />` : html`<${Time} at=${e.expires_at} />` },
    { key: "granted_by", title: "Given by", width: "8rem", hide: "medium", render: (e) => html`<${Name}>${e.granted_by}</${Name}>` },
    { key: "take", sortable: false, width: "7.8rem", small: "6.2rem", align: "end", render: (e) => html`<${Action} label="Remove… (${e.permission} of ${e.principal_id} on ${nameOf(e)})"
      run=${async () => (await take(pathOf(e), e)) && changed()}>Remove…</${Action}>` },
  ];
  return html`<${Card} title=${label}><${DataTable} label=${label} noun="permission" isKept=${false} rows=${rows} keyOf=${(e) => e.id} columns=${columns}
    search=${{ label: "Search by name", text: (e) => `${nameOf(e)} ${e.principal_id} ${e.granted_by}` }}
    filters=${[
      { key: "may", title: "May", options: LEVELS, accept: (e, value) => e.permission === value },
      { key: "who", title: "Is a", options: KINDS_OF_PRINCIPAL, accept: (e, value) => e.principal_type === value },
    ]} empty=${empty} ...${rest} /></${Card}>`;
}

export default function Access() {
  const buckets = api.usePolled((signal) => ofBuckets(signal), [], { isLive: false });
  const scan = useScan(ofFile);
  return html`<${Heading} title="Access" sub="What users, groups and roles may do with your buckets and files." />
    ${table({
      label: "On buckets", rows: buckets.data || [], isLoading: buckets.isLoading, error: buckets.error, refresh: buckets.refresh,
      nameOf: (e) => e.bucket.name, pathOf: (e) => `buckets/${e.bucket.bucket_id}`, changed: buckets.refresh,
      place: (e) => html`<a href="#/buckets/${e.bucket.bucket_id}"><${Name}>${e.bucket.name}</${Name}></a>`,
      empty: html`<${Empty} title="Nobody but owners.">Open one of your <a href="#/buckets">buckets</a> to give access to it and all its files.</${Empty}>`,
    })}
    <${Scanned} scan=${scan} what="permissions" />
    ${table({
      label: "On files", rows: scan.rows, isLoading: scan.isRunning, error: scan.error, refresh: scan.restart,
      nameOf: (e) => e.file.filename, pathOf: (e) => `files/${e.file.file_uuid}`, changed: scan.restart,
      place: (e) => html`<a href="#/file/${e.file.file_uuid}?kind=${e.file.kind}"><${Name}>${e.file.filename}</${Name}></a>`,
      empty: html`<${Empty} title="Nobody but owners.">Open a file to give a user, a group or a role access to it alone.</${Empty}>`,
    })}`;
}
