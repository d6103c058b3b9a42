// Coordinators, which keep the records: who leads, who lags, and changes of their group.
import { html } from "../html.js";
import * as api from "../api.js";
import { clock, ROLES, urlOf, useStatus } from "../cluster.js";
import { counted } from "../format.js";
import { path } from "../path.js";
import { consoleOf } from "../place.js";
import { confirmName } from "../ui/confirm-name.js";
import { confirm } from "../ui/dialog.js";
import { Menu } from "../ui/menu.js";
import { addMachine } from "../ui/node-actions.js";
import { DataTable } from "../ui/table.js";
import { Action, Badge, Empty, Heading, Name, Time } from "../ui/parts.js";
import { notify } from "../ui/toast.js";

const troublesOf = (c) => [c.disk_full && "disk full", c.recovering && "recovering", c.diverged && "state wrong", c.active === false && "not heard by the leader"].filter(Boolean);

function handOver(coordinator) {
  return confirm({
    title: coordinator ? "Let this coordinator lead?" : "Hand the lead over?",
    names: coordinator ? [coordinator.id] : [],
    text: `${coordinator ? "It" : "The most advanced of the others"} takes over within a second. Changes wait until then; nothing is lost.`,
    action: "Hand it over",
    tone: "",
    run: async () => {
      const { leader } = await api.post(path`cluster/leader`, coordinator ? { id: coordinator.id } : {});
      notify(`${leader} leads now.`, "good");
    },
  });
}

function remove(coordinator, voters) {
  return confirmName({
    title: `Remove the coordinator ${coordinator.id}?`,
    name: coordinator.id,
    text: `It leaves for good, its process ends, and its name is never used again. ${counted(voters, "coordinator")} ${voters === 1 ? "votes" : "vote"} now; a majority must answer at all times.`,
    action: "Remove it",
    run: async () => {
      await api.del(path`cluster/coordinators/${coordinator.id}`);
      notify(`${coordinator.id} is removed.`, "good");
    },
  });
}

export default function Coordinators() {
  const status = useStatus(3000);
  const authority = api.usePolled((signal) => api.get(path`cluster/ca`, { signal }), [], { everyMs: 30_000 });
  const addresses = Object.fromEntries((authority.data?.coordinators || []).map((each) => [each.coordinator_id, urlOf(each)]));
  const rows = status.data?.coordinators || [];
  const voters = rows.filter((c) => c.membership === "voter").length;
  const answering = rows.filter((c) => c.role !== "unreachable").length;
  const count = (key) => (c) => c[key] === undefined ? html`<span class="quiet">unknown</span>` : c[key].toLocaleString("en");
  const columns = [
    { key: "id", title: "Coordinator", render: (c) => addresses[c.id] ? html`<a href=${consoleOf(addresses[c.id])} rel="noreferrer" title="Its console, at ${addresses[c.id]}"><${Name} title="">${c.id}</${Name}></a>` : html`<${Name}>${c.id}</${Name}>` },
    { key: "role", title: "Role", width: "8rem", render: (c) => html`<${Badge} state=${c.role.replace("_", "-")} tone=${ROLES[c.role]?.[0]} title=${ROLES[c.role]?.[1]} />` },
    { key: "membership", title: "Votes", width: "5rem", hide: "narrow", render: (c) => c.membership === "voter" ? "yes" : html`<span title="It catches up first">not yet</span>` },
    { key: "troubles", title: "Trouble", width: "10rem", hide: "narrow", value: (c) => troublesOf(c).join(), render: (c) => troublesOf(c).length === 0 ? html`<span class="quiet">none</span>`
      : troublesOf(c).map((text) => html`<${Badge} tone="bad">${text}</${Badge}> `) },
    { key: "lag", title: "Lag", width: "6rem", align: "end", hide: "narrow", value: (c) => c.lag ?? -1, render: count("lag") },
    { key: "applied", title: "Applied", width: "7rem", align: "end", hide: "medium", value: (c) => c.applied ?? -1, render: count("applied") },
    { key: "term", title: "Term", width: "5.5rem", align: "end", hide: "wide", value: (c) => c.term ?? -1, render: count("term") },
    { key: "clock", title: "Clock", width: "7rem", hide: "wide", value: clock, render: (c) => clock(c) || html`<span class="quiet">unknown</span>` },
    { key: "version", title: "Version", width: "6rem", hide: "wide", value: (c) => c.version || "", render: (c) => c.version || html`<span class="quiet">unknown</span>` },
    { key: "certificate_expires_at", title: "Certificate", width: "7.5rem", hide: "medium", value: (c) => c.certificate_expires_at || "", render: (c) => html`<${Time} at=${c.certificate_expires_at} none="unknown" />` },
    { key: "menu", sortable: false, width: "3.2rem", align: "end", render: (c) => html`<${Menu} label="Actions for ${c.id}" items=${[
      c.role !== "leader" && { text: "Let it lead…", run: async () => (await handOver(c)) && status.refresh() },
      c.role === "leader" && { text: "Hand the lead over…", run: async () => (await handOver()) && status.refresh() },
      { text: "Remove…", tone: "bad", run: async () => (await remove(c, voters)) && status.refresh() },
    ]} />` },
  ];
  return html`<${Heading} title="Coordinators" sub="They keep the records and order all changes. A majority must answer for any change.">
      <${Action} run=${() => handOver()} onDone=${(done) => done && status.refresh()} disabled=${!status.data?.leader || rows.length < 2}>Hand the lead over…</${Action}>
      <${Action} tone="primary" run=${() => addMachine({ nodeOnly: false })} onDone=${status.refresh}>Add a coordinator…</${Action}></${Heading}>
    ${status.data && !status.data.leader && html`<p class="banner bad" role="alert">No coordinator leads: nothing can be changed. ${answering} of ${rows.length} answer,
      and more than half must: start those that are unreachable. This page refreshes itself.</p>`}
    <${DataTable} label="Coordinators" noun="coordinator" rows=${rows} keyOf=${(c) => c.id} columns=${columns}
      search=${{ label: "Search by name or role", text: (c) => `${c.id} ${c.role} ${c.membership}` }}
      isLoading=${status.isLoading} error=${status.error} refresh=${status.refresh} sort=${{ key: "id", down: false }}
      empty=${html`<${Empty} title="No coordinator is known.">Load the page again.</${Empty}>`} />`;
}
