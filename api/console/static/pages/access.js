// Who has access to what: what others may do with one's buckets and files, and what one may do with those of others.
import { html } from "../html.js";
import * as api from "../api.js";
import { fileAddress } from "../files.js";
import { address, bucketAt, fileAt, path } from "../path.js";
import { isOver, isReceived, useRights } from "../rights.js";
import { go } from "../router.js";
import { take } from "../ui/grants.js";
import { DataTable } from "../ui/table.js";
import { Menu } from "../ui/menu.js";
import { Badge, Empty, Heading, Name, Time } from "../ui/parts.js";

const LEVELS = [["read", "read"], ["write", "write"], ["admin", "admin"]];
const KINDS_OF_PRINCIPAL = [["user", "user"], ["group", "group"], ["role", "role"]];
const PLACES = [["bucket", "buckets"], ["file", "files"]];
const DIRECTIONS = [["received", "given to me"], ["given", "given to others"]];

const pathOf = (e) => (e.target === "bucket" ? bucketAt(e.bucket_id) : fileAt(e.file_uuid));
const pageOf = (e) => (e.target === "bucket" ? address`/buckets/${e.bucket_id}` : fileAddress(e));

export default function Access() {
  const list = api.useList(path`permissions`, "permissions");
  const { mayOnBucket, mayOnFile } = useRights();
  // Only who owns the file, or had admin permission on it, can have given this one.
  const mayTake = (e) => !isReceived(e) || (e.target === "bucket" ? mayOnBucket : mayOnFile)(e, "admin");
  const columns = [
    { key: "name", title: "On", render: (e) => html`<a href=${pageOf(e)}><${Name}>${e.name}</${Name}></a>` },
    { key: "target", title: "Is a", width: "5rem", hide: "narrow", value: (e) => e.kind || e.target, render: (e) => e.kind || e.target },
    { key: "principal_id", title: "Who", width: "9rem", small: "4.8rem", render: (e) => html`<${Name}>${e.principal_id}</${Name}>` },
    { key: "principal_type", title: "As", width: "5.5rem", hide: "narrow" },
    { key: "permission", title: "May", width: "5.5rem", small: "4.2rem", render: (e) => html`<${Badge} state=${e.permission} />` },
    { key: "expires_at", title: "Ends", width: "8rem", hide: "narrow", render: (e) => isOver(e) ? html`<${Badge} state="expired" />` : html`<${Time} at=${e.expires_at} none="never" />` },
    { key: "granted_by", title: "Given by", width: "8rem", hide: "medium", render: (e) => html`<${Name}>${e.granted_by}</${Name}>` },
    { key: "menu", sortable: false, width: "3.2rem", small: "2.3rem", align: "end", render: (e) => html`<${Menu} label="Actions for ${e.permission} of ${e.principal_id} on ${e.name}" items=${[
      { text: `Show the ${e.kind || "bucket"}`, run: () => go(pageOf(e)) },
      mayTake(e) && { text: "Remove this access…", tone: "bad", run: async () => (await take(pathOf(e), e)) && list.refresh() },
    ]} />` },
  ];
  return html`<${Heading} title="Access" sub="What others may do with your buckets and files, and what you may do with theirs." />
    <${DataTable} label="Access" noun="permission" rows=${list.rows} keyOf=${(e) => e.id} columns=${columns}
      search=${{ label: "Search by name", text: (e) => `${e.name} ${e.principal_id} ${e.granted_by}` }} sort=${{ key: "name", down: false }}
      filters=${[
        { key: "who", title: "Whose", options: DIRECTIONS, accept: (e, value) => isReceived(e) === (value === "received") },
        { key: "on", title: "On", options: PLACES, accept: (e, value) => e.target === value },
        { key: "may", title: "May", options: LEVELS, accept: (e, value) => e.permission === value },
        { key: "as", title: "As", options: KINDS_OF_PRINCIPAL, accept: (e, value) => e.principal_type === value },
      ]} isLoading=${list.isLoading} error=${list.error} refresh=${list.refresh}
      empty=${html`<${Empty} title="Only owners have access.">Open a file, or one of your <a href="#/buckets">buckets</a>, and choose Give access: to a user, a group or a role.</${Empty}>`} />`;
}
