// Snapshots of the metadata: which there are, and until when the content of their files stays.
import { html } from "../html.js";
import * as api from "../api.js";
import { size } from "../format.js";
import { address, path } from "../path.js";
import { DataTable } from "../ui/table.js";
import { Badge, Empty, Heading, Name, Size, When } from "../ui/parts.js";

const TONES = { held: "good", expired: "plain", evicted: "bad" };
export const WORDS = {
  held: "The content of its files stays on the disks",
  expired: "The time of its content is over: a file may have none any more",
  evicted: "The disks were almost full: it lost its content before its time",
};

export const Hold = ({ snapshot }) => html`<${Badge} state=${snapshot.hold} tone=${TONES[snapshot.hold]} title=${WORDS[snapshot.hold]} />`;

export default function Snapshots() {
  const list = api.useList(path`cluster/snapshots`, "snapshots");
  const columns = [
    { key: "taken_at", title: "Taken", render: (s) => html`<a href=${address`/snapshots/${s.snapshot_id}`}><${When} at=${s.taken_at} /></a>` },
    { key: "files", title: "Files", width: "6rem", small: "4.5rem", align: "end", render: (s) => s.files.toLocaleString("en") },
    { key: "hold", title: "Content", width: "7rem", small: "5.8rem", render: (s) => html`<${Hold} snapshot=${s} />` },
    { key: "held_until", title: "Until", width: "11rem", hide: "narrow", render: (s) => html`<${When} at=${s.held_until} />` },
    { key: "held_bytes", title: "Keeps", width: "7rem", hide: "narrow", align: "end", render: (s) => html`<${Size} bytes=${s.held_bytes} />` },
    { key: "size_bytes", title: "Size", width: "6.5rem", hide: "wide", align: "end", render: (s) => html`<${Size} bytes=${s.size_bytes} />` },
    { key: "coordinator_id", title: "Is on", width: "9rem", hide: "medium", render: (s) => html`<${Name}>${s.is_readable ? s.coordinator_id : `${s.coordinator_id} (removed)`}</${Name}>` },
    { key: "sent_to", title: "Sent to", width: "11rem", hide: "wide", render: (s) => s.sent_to || html`<span class="quiet">nowhere else</span>` },
  ];
  const kept = list.rows.reduce((sum, snapshot) => sum + snapshot.held_bytes, 0);
  return html`<${Heading} title="Snapshots" sub="Copies of all metadata, taken once a day. Files come back from one while the cluster runs.${kept > 0 ? ` They keep ${size(kept)} of deleted files.` : ""}" />
    <${DataTable} label="Snapshots" noun="snapshot" rows=${list.rows} keyOf=${(s) => s.snapshot_id} columns=${columns} sort=${{ key: "taken_at", down: true }}
      search=${{ label: "Search by id or coordinator", text: (s) => `${s.snapshot_id} ${s.coordinator_id} ${s.sent_to}` }}
      isLoading=${list.isLoading} error=${list.error} refresh=${list.refresh}
      empty=${html`<${Empty} title="There are no snapshots.">The job snapshot takes one each day, and <a href="#/jobs">when you run it</a>.
        <a href="#/help/restore">What snapshots are for</a></${Empty}>`} />`;
}
