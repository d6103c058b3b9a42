// What can be done with groups, invitations and sessions.
import { html, useEffect, useState } from "../html.js";
import * as api from "../api.js";
import { moment } from "../format.js";
import { address, bucketAt, path } from "../path.js";
import { confirmName } from "./confirm-name.js";
import { confirm, Dialog, FormDialog, show } from "./dialog.js";
import { Copy, Name } from "./parts.js";
import { notify } from "./toast.js";

const NAME = "[A-Za-z0-9._@:\\-]+";
const ALLOWED = "Letters, digits and . _ @ : -";
const LIVES = [[86_400, "a day"], [604_800, "7 days"], [2_592_000, "30 days"]];
const LEVELS = [["read", "read: look and download"], ["write", "write: read, change and upload"], ["admin", "admin: write, share, grant and delete"]];

const groupAt = (name) => path`groups/${name}`;
const namesIn = (text) => [...new Set(text.split(/[\s,;]+/).filter(Boolean))];

export function addGroup(known) {
  return show((close) => html`<${FormDialog} title="Add a group" close=${close} action="Add the group" submit=${async (values) => {
    if (known.some((each) => each.group === values.group)) throw { message: "A group with this name exists.", advice: "Choose another name." };
    return api.put(groupAt(values.group), { description: values.description });
  }}><label>Name<input name="group" required maxlength="64" pattern=${NAME} title=${ALLOWED} autocomplete="off" autocapitalize="off" autofocus /></label>
    <label>What it is for<input name="description" maxlength="255" autocomplete="off" /></label></${FormDialog}>`);
}

export function describeGroup(group) {
  return show((close) => html`<${FormDialog} title="Change ${group.group}" close=${close} submit=${(values) => api.put(groupAt(group.group), { description: values.description })}>
    <label>What it is for<input name="description" maxlength="255" autocomplete="off" defaultValue=${group.description} autofocus /></label></${FormDialog}>`);
}

export function deleteGroup(group) {
  return confirmName({ title: `Delete ${group.group}?`, name: group.group,
    text: "Its members lose what the group was granted, from their next request on. Users and files stay. This cannot be undone.",
    action: "Delete", run: async () => {
      await api.del(groupAt(group.group));
      notify(`${group.group} is deleted.`, "good");
    } });
}

function Adding({ group, close }) {
  const [users, setUsers] = useState([]);
  useEffect(() => {
    api.list(path`auth/users`, "users").then(({ rows }) => setUsers(rows.map((user) => user.user_id).sort()), () => {});
  }, []);
  return html`<${FormDialog} title="Add members to ${group}" close=${close} action="Add them" submit=${async (values) => {
    const names = namesIn(`${values.user} ${values.others}`);
    if (names.length === 0) throw { message: "Name at least one user." };
    const { added } = await api.post(path`${groupAt(group)}/members`, { user_ids: names });
    notify(added.length === 1 ? `${added[0]} is in ${group} now.` : `${added.length} users were added to ${group}.`, "good");
    return added;
  }}><label>A user<input name="user" list="known-users" maxlength="128" autocomplete="off" autocapitalize="off" spellcheck="false" autofocus /></label>
    <datalist id="known-users">${users.map((name) => html`<option value=${name}></option>`)}</datalist>
    <label>Or several<textarea name="others" rows="4" spellcheck="false" placeholder="alice, bob, carol"></textarea></label>
    <p class="quiet">Separate them by commas, spaces or lines. All of them must exist already.</p></${FormDialog}>`;
}

export const addMembers = (group) => show((close) => html`<${Adding} group=${group} close=${close} />`);

export function removeMember(group, member) {
  return confirm({ title: `Remove from ${group}?`, names: [member.user_id],
    text: "What the group was granted ends for this user with the next request.", action: "Remove",
    run: () => api.del(path`${groupAt(group)}/members/${member.user_id}`) });
}

export async function giveGroupBucket(group) {
  const { rows } = await api.list(path`buckets`, "buckets");
  return show((close) => html`<${FormDialog} title="Give ${group} access to a bucket" close=${close} action="Give access" submit=${async (values) => {
    const body = { principal_type: "group", principal_id: group, permission: values.permission, expires_at: "" };
    const entry = await api.post(path`${bucketAt(values.bucket_id)}/permissions`, body);
    notify(`${group} has ${entry.permission} now.`, "good");
    return entry;
  }}><label>Bucket<select name="bucket_id">${rows.map((bucket) => html`<option value=${bucket.bucket_id}>${bucket.name}</option>`)}</select></label>
    <label>May<select name="permission">${LEVELS.map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select></label>
    <p class="quiet">This covers all its files, for every member, until it is removed.</p></${FormDialog}>`);
}

export async function invite(user) {
  const made = await show((close) => html`<${FormDialog} title="Make an invitation link for ${user.user_id}" close=${close} action="Make it"
    submit=${(values) => api.post(path`auth/users/${user.user_id}/invitation`, { ttl_seconds: Number(values.ttl_seconds) }, { query: { existing: 1 } })}>
    <p>The link signs <strong><${Name}>${user.user_id}</${Name}></strong> in, once. It is for a new user, and for somebody who has lost the token.
      An earlier link of theirs stops working; tokens stay valid.</p>
    <label>The link works for<select name="ttl_seconds">${LIVES.map(([value, text]) => html`<option value=${value} selected=${value === 604_800}>${text}</option>`)}</select></label></${FormDialog}>`);
  if (!made) return made;
  // The address of this page is one that works here; the cluster may name another.
  const url = location.href.split("#")[0] + address`/invitation/${made.token}`;
  return show((close) => html`<${Dialog} title="Invitation of ${made.user_id}" close=${close} wide>
    <p>It is shown only once. Whoever opens it first is signed in as ${made.user_id}: send it over a safe channel. It works once, until ${moment(made.expires_at)}.</p>
    <pre class="text command" tabindex="0" aria-label="The link">${url}</pre>
    <footer><${Copy} text=${url} label="Copy the link" class="outline" /><button type="button" onClick=${() => close(true)}>Done</button></footer></${Dialog}>`);
}

export function endSession(user, row) {
  return confirm({ title: row.is_current ? "End the session that you use now?" : "End this session?", names: [row.label || row.session_id],
    text: row.is_current ? "You are signed out, here and wherever this token was copied to." : "Its tokens are rejected on every node from the next request on.",
    action: "End it", run: () => api.del(path`auth/users/${user}/sessions/${row.session_id}`) });
}

export function endSessions(user, isOwn) {
  return confirm({ title: isOwn ? "End all your sessions?" : `End all sessions of ${user}?`,
    text: `Every token made until now is rejected, on every node${isOwn ? ", also the one that you use now" : ""}. Permissions and links stay.`,
    action: "End all", run: () => api.del(path`auth/users/${user}/sessions`) });
}
