// One group: its members, and what it was granted.
import { html } from "../html.js";
import * as api from "../api.js";
import { fileAddress } from "../files.js";
import { address, bucketAt, fileAt, path } from "../path.js";
import { isOver } from "../rights.js";
import { go } from "../router.js";
import { take } from "../ui/grants.js";
import { addMembers, deleteGroup, describeGroup, giveGroupBucket, removeMember } from "../ui/people-actions.js";
import { DataTable } from "../ui/table.js";
import { Action, Badge, Card, Empty, ErrorBox, Heading, Loading, Name, Time } from "../ui/parts.js";

const pageOf = (e) => (e.target === "bucket" ? address`/buckets/${e.bucket_id}` : fileAddress(e));
const pathOf = (e) => (e.target === "bucket" ? bucketAt(e.bucket_id) : fileAt(e.file_uuid));
const isOnlyGiven = (m) => !m.sources.includes("local");

export default function Group({ params }) {
  const at = path`groups/${params.name}`;
  const { data: group, error, refresh } = api.usePolled((signal) => api.getOne(at, "group", params.name, { signal }), [params.name], { everyMs: 20_000 });
  const members = api.useList(path`${at}/members`, "members");
  const grants = api.useList(path`${at}/permissions`, "permissions");
  if (!group) return html`<${Heading} title=${html`<${Name}>${params.name}</${Name}>`} name=${params.name} />${error ? html`<${ErrorBox} error=${error} retry=${refresh} />` : html`<${Loading} lines=${6} />`}`;
  const changed = () => Promise.all([members.refresh(), refresh()]);
  const ofMembers = [
    { key: "user_id", title: "Member", render: (m) => html`<${Name}>${m.user_id}</${Name}>` },
    { key: "sources", title: "Put there by", width: "12rem", hide: "narrow", value: (m) => m.sources.join(), render: (m) => m.sources.map((source) => html`<${Badge} tone="plain">${source === "local" ? "administrator" : source}</${Badge}> `) },
    { key: "disabled", title: "State", width: "6.5rem", hide: "narrow", value: (m) => String(m.disabled), render: (m) => (m.disabled ? html`<${Badge} state="disabled" tone="bad" />` : html`<${Badge} state="active" />`) },
    { key: "remove", sortable: false, width: "7.8rem", small: "7.2rem", align: "end", render: (m) => (isOnlyGiven(m)
      ? html`<span class="quiet" title="Remove the user at the provider of sign-in">from ${m.sources[0]}</span>`
      : html`<${Action} label="Remove ${m.user_id}…" run=${async () => (await removeMember(group.group, m)) && changed()}>Remove…</${Action}>`) },
  ];
  const ofGrants = [
    { key: "name", title: "On", render: (e) => html`<a href=${pageOf(e)}><${Name}>${e.name}</${Name}></a>` },
    { key: "target", title: "Is a", width: "6rem", hide: "narrow", render: (e) => e.kind || e.target },
    { key: "permission", title: "May", width: "6rem", small: "4.2rem", render: (e) => html`<${Badge} state=${e.permission} />` },
    { key: "expires_at", title: "Ends", width: "8rem", hide: "narrow", render: (e) => (isOver(e) ? html`<${Badge} state="expired" />` : html`<${Time} at=${e.expires_at} />`) },
    { key: "take", sortable: false, width: "7.8rem", small: "7.2rem", align: "end", render: (e) => html`<${Action} label="Remove ${e.permission} on ${e.name}…"
      run=${async () => (await take(pathOf(e), e)) && grants.refresh()}>Remove…</${Action}>` },
  ];
  return html`<${Heading} title=${html`<${Name}>${group.group}</${Name}>`} name=${group.group} sub=${group.description || "A group of users."}>
      <${Action} tone="primary" run=${async () => (await addMembers(group.group)) && changed()}>Add members…</${Action}>
      <${Action} run=${async () => (await describeGroup(group)) && refresh()}>Change…</${Action}>
      <${Action} run=${async () => (await deleteGroup(group)) && go("/groups")}>Delete…</${Action}></${Heading}>
    <${Card} title="Members"><${DataTable} label="Members" noun="member" rows=${members.rows} keyOf=${(m) => m.user_id} columns=${ofMembers}
      search=${{ label: "Search members", text: (m) => m.user_id }} sort=${{ key: "user_id", down: false }}
      isLoading=${members.isLoading} error=${members.error} refresh=${members.refresh}
      empty=${html`<${Empty} title="No members yet.">Add users who exist already.</${Empty}>`} /></${Card}>
    <${Card} title="What it was granted" actions=${html`<${Action} run=${async () => (await giveGroupBucket(group.group)) && grants.refresh()}>Give access to a bucket…</${Action}>`}>
      <${DataTable} label="What it was granted" noun="permission" rows=${grants.rows} keyOf=${(e) => e.id} columns=${ofGrants} sort=${{ key: "name", down: false }}
      isLoading=${grants.isLoading} error=${grants.error} refresh=${grants.refresh}
      empty=${html`<${Empty} title="Nothing yet.">Give the group access to a bucket here, or to a file on its page.</${Empty}>`} /></${Card}>`;
}
