// Users: roles, groups and tokens.
import { html } from "../html.js";
import * as api from "../api.js";
import { address, path } from "../path.js";
import { go } from "../router.js";
import { session } from "../session.js";
import { addUser, changeUser, deleteUser, giveBucket, mint, revokeUser, setDisabled } from "../ui/user-actions.js";
import { invite } from "../ui/people-actions.js";
import { DataTable } from "../ui/table.js";
import { Menu } from "../ui/menu.js";
import { Action, Badge, Empty, Heading, Name, Time } from "../ui/parts.js";

const stateOf = (user) => (user.disabled ? "disabled" : "active");

export default function Users() {
  const list = api.useList(path`auth/users`, "users");
  const own = session.get().user.user_id;
  const then = (act) => async () => (await act()) && list.refresh();
  const groups = [...new Set(list.rows.flatMap((user) => user.groups))].sort();
  const columns = [
    { key: "user_id", title: "User", render: (u) => html`<${Name}>${u.user_id}</${Name}>` },
    { key: "state", title: "State", width: "7rem", value: stateOf, render: (u) => html`<${Badge} state=${stateOf(u)} tone=${u.disabled ? "bad" : "good"} />` },
    { key: "roles", title: "Roles", width: "11rem", hide: "narrow", value: (u) => u.roles.join(), render: (u) => html`<span title=${u.roles.join(", ")}>${u.roles.length === 0 ? html`<span class="quiet">none</span>`
      : u.roles.map((role) => html`<${Badge} tone=${role === "admin" ? "warn" : "plain"}>${role}</${Badge}> `)}</span>` },
    { key: "groups", title: "Groups", width: "13rem", hide: "narrow", value: (u) => u.groups.join(), render: (u) => html`<span title=${u.groups.join(", ")}>${u.groups.length === 0 ? html`<span class="quiet">none</span>`
      : u.groups.map((group) => html`<${Badge} tone="plain">${group}</${Badge}> `)}</span>` },
    { key: "created_at", title: "Added", width: "7rem", hide: "medium", render: (u) => html`<${Time} at=${u.created_at} />` },
    { key: "updated_at", title: "Changed", width: "7rem", hide: "wide", render: (u) => html`<${Time} at=${u.updated_at} />` },
    { key: "menu", sortable: false, width: "3.2rem", align: "end", render: (u) => html`<${Menu} label="Actions for ${u.user_id}" items=${[
      { text: "Change roles and groups…", run: then(() => changeUser(u)) },
      !u.disabled && { text: "Make an invitation link…", run: () => invite(u) },
      !u.disabled && { text: "Create a token…", run: () => mint(u) },
      { text: "Sessions", run: () => go(address`/sessions?user=${u.user_id}`) },
      { text: "Give access to a bucket…", run: () => giveBucket(u) },
      { text: "What they did", run: () => go(address`/audit?principal=${u.user_id}`) },
      u.user_id !== own && (u.disabled ? { text: "Enable", run: then(() => setDisabled(u, false)) } : { text: "Disable…", run: then(() => setDisabled(u, true)) }),
      { text: "Revoke everything…", tone: "bad", run: then(() => revokeUser(u)) },
      u.user_id !== own && { text: "Delete…", tone: "bad", run: then(() => deleteUser(u)) },
    ]} />` },
  ];
  return html`<${Heading} title="Users" sub="Users sign in with tokens. A token is shown only once, when it is created.">
      <${Action} tone="primary" run=${() => addUser(list.rows)} onDone=${(made) => made && list.refresh()}>Add a user…</${Action}></${Heading}>
    <${DataTable} label="Users" noun="user" rows=${list.rows} keyOf=${(u) => u.user_id} columns=${columns}
      search=${{ label: "Search by name, role or group", text: (u) => `${u.user_id} ${u.roles.join(" ")} ${u.groups.join(" ")}` }}
      filters=${[
        { key: "state", title: "State", options: [["active", "active"], ["disabled", "disabled"]], accept: (u, value) => stateOf(u) === value },
        { key: "group", title: "Group", options: groups.map((name) => [name, name]), accept: (u, value) => u.groups.includes(value) },
      ]} sort=${{ key: "user_id", down: false }} isLoading=${list.isLoading} error=${list.error} refresh=${list.refresh}
      empty=${html`<${Empty} title="No users yet.">Add a user and give them the token.</${Empty}>`} />`;
}
