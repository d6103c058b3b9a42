// Groups of users: who is in them is on the page of each.
import { html } from "../html.js";
import * as api from "../api.js";
import { address, path } from "../path.js";
import { go } from "../router.js";
import { addGroup, addMembers, deleteGroup } from "../ui/people-actions.js";
import { DataTable } from "../ui/table.js";
import { Menu } from "../ui/menu.js";
import { Action, Empty, Heading, Name } from "../ui/parts.js";

const pageOf = (g) => address`/groups/${g.group}`;

export default function Groups() {
  const list = api.useList(path`groups`, "groups");
  const then = (act) => async () => (await act()) && list.refresh();
  const columns = [
    { key: "group", title: "Group", render: (g) => html`<a href=${pageOf(g)}><${Name}>${g.group}</${Name}></a>` },
    { key: "members", title: "Members", width: "7rem", small: "5.6rem", align: "end", render: (g) => html`<span class="number">${g.members}</span>` },
    { key: "description", title: "What it is for", width: "22rem", hide: "narrow", render: (g) => (g.description ? html`<${Name}>${g.description}</${Name}>` : html`<span class="quiet">not said</span>`) },
    { key: "menu", sortable: false, width: "3.2rem", small: "2.3rem", align: "end", render: (g) => html`<${Menu} label="Actions for ${g.group}" items=${[
      { text: "Show members and access", run: () => go(pageOf(g)) },
      { text: "Add members…", run: then(() => addMembers(g.group)) },
      { text: "Delete…", tone: "bad", run: then(() => deleteGroup(g)) },
    ]} />` },
  ];
  return html`<${Heading} title="Groups" sub="Access that is given to a group holds for all its members.">
      <${Action} tone="primary" run=${() => addGroup(list.rows)} onDone=${(made) => made && go(pageOf(made))}>Add a group…</${Action}></${Heading}>
    <${DataTable} label="Groups" noun="group" rows=${list.rows} keyOf=${(g) => g.group} columns=${columns}
      search=${{ label: "Search groups", text: (g) => `${g.group} ${g.description}` }} sort=${{ key: "group", down: false }}
      isLoading=${list.isLoading} error=${list.error} refresh=${list.refresh}
      empty=${html`<${Empty} title="No groups yet.">Add a group, then its members. Or bring a whole class: <code>filestore user import class.csv</code>.</${Empty}>`} />`;
}
