// What can be done with a user: make, change, mint a token, disable, revoke, delete, give access to a bucket.
import { html } from "../html.js";
import * as api from "../api.js";
import { moment } from "../format.js";
import { bucketAt, path } from "../path.js";
import { confirmName } from "./confirm-name.js";
import { confirm, Dialog, FormDialog, show } from "./dialog.js";
import { Copy, Name } from "./parts.js";
import { save } from "./save.js";
import { notify } from "./toast.js";

const NAME = "[A-Za-z0-9._@:\\-]+";
const ALLOWED = "Letters, digits and . _ @ : -";
const LIVES = [[43_200, "12 hours"], [86_400, "a day"], [604_800, "7 days"], [2_592_000, "30 days"]];
const LEVELS = [["read", "read: look and download"], ["write", "write: read, change and upload"], ["admin", "admin: write, share, grant and delete"]];

const pathOf = (id) => path`auth/users/${id}`;
const EXISTING = { query: { existing: 1 } }; // 404 for a user that was deleted meanwhile
const namesIn = (text) => [...new Set(text.split(/[\s,]+/).filter(Boolean))];
const LISTED = `[A-Za-z0-9._@:\\-\\s,]*`;

// Roles and groups of a user; `admin` has a box of its own.
function Rights({ user }) {
  const roles = user?.roles || [];
  return html`<label class="flag"><input type="checkbox" name="is_admin" value="1" defaultChecked=${roles.includes("admin")} />Administrator: may see and do everything</label>
    <div class="pair"><label>Groups<input name="groups" pattern=${LISTED} title="${ALLOWED}; several with commas" placeholder="students, staff" autocomplete="off" defaultValue=${(user?.groups || []).join(", ")} /></label>
    <label>Other roles<input name="roles" pattern=${LISTED} title="${ALLOWED}; several with commas" placeholder="teacher" autocomplete="off" defaultValue=${roles.filter((role) => role !== "admin").join(", ")} /></label></div>
    <p class="quiet">Access is given to users, groups and roles by name.</p>`;
}

const rightsIn = (values) => ({ roles: [...(values.is_admin ? ["admin"] : []), ...namesIn(values.roles)], groups: namesIn(values.groups) });

const Life = () => html`<label>Lifetime of the token<select name="ttl_seconds">${LIVES.map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select></label>`;

export async function addUser(known) {
  const made = await show((close) => html`<${FormDialog} title="Add a user" close=${close} action="Add the user" submit=${async (values, { signal }) => {
    if (known.some((user) => user.user_id === values.user_id)) throw { message: "A user with this name exists.", advice: "Choose another name, or change the existing user." };
    const user = await api.put(pathOf(values.user_id), rightsIn(values));
    if (!values.ttl_seconds || signal.aborted) return { user };
    return { user, minted: await api.post(path`${pathOf(values.user_id)}/token`, { ttl_seconds: Number(values.ttl_seconds) }) };
  }}><label>Name<input name="user_id" required maxlength="128" pattern=${NAME} title=${ALLOWED} autocomplete="off" autocapitalize="off" autofocus /></label>
    <${Rights} /><label>A token to sign in with<select name="ttl_seconds">${LIVES.map(([value, text]) => html`<option value=${value}>create one for ${text}</option>`)}
      <option value="">create none now</option></select></label></${FormDialog}>`);
  if (made?.minted) await showToken(made.minted);
  return made;
}

export function changeUser(user) {
  return show((close) => html`<${FormDialog} title="Change ${user.user_id}" close=${close} submit=${async (values) => {
    const changed = await api.put(pathOf(user.user_id), rightsIn(values), EXISTING);
    notify(`${user.user_id} is changed. Tokens that live have the new rights at once.`, "good");
    return changed;
  }}><${Rights} user=${user} /></${FormDialog}>`);
}

export async function mint(user) {
  const minted = await show((close) => html`<${FormDialog} title="Create a token for ${user.user_id}" close=${close} action="Create it"
    submit=${(values) => api.post(path`${pathOf(user.user_id)}/token`, { ttl_seconds: Number(values.ttl_seconds) }, EXISTING)}>
    <p>Anyone who has it can sign in as <strong><${Name}>${user.user_id}</${Name}></strong>. Older tokens stay valid.</p><${Life} /></${FormDialog}>`);
  if (minted) await showToken(minted);
  return minted;
}

function showToken(minted) {
  const saveToken = () => save(`${minted.token}\n`, `${minted.user_id.replaceAll(/[^\w.@-]/g, "_")}.token`);
  return show((close) => html`<${Dialog} title="Token of ${minted.user_id}" close=${close} wide>
    <p>It is shown only once. Give it to them now over a safe channel. It expires on ${moment(minted.expires_at)}.</p>
    <pre class="text command" tabindex="0" aria-label="The token">${minted.token}</pre>
    <footer><button type="button" class="outline" onClick=${saveToken}>Save as a file</button>
      <${Copy} text=${minted.token} label="Copy the token" class="outline" /><button type="button" onClick=${() => close(true)}>Done</button></footer></${Dialog}>`);
}

export async function setDisabled(user, disabled) {
  const change = async () => {
    await api.put(pathOf(user.user_id), { disabled }, EXISTING);
    notify(`${user.user_id} ${disabled ? "is disabled. Their tokens are rejected." : "may sign in again."}`, "good");
  };
  if (!disabled) return (await change(), true);
  return confirm({ title: "Disable this user?", names: [user.user_id], text: "Their tokens are rejected at once, and no new ones are created. Files and permissions stay. You can undo this.",
    action: "Disable", run: change });
}

export function revokeUser(user) {
  return confirmName({ title: `Revoke everything of ${user.user_id}?`, name: user.user_id,
    text: "This removes all their permissions and revokes their tokens and public links on every node. Their files stay. This cannot be undone.",
    action: "Revoke everything", run: async () => {
      await api.post(path`auth/revoke`, { user_id: user.user_id });
      notify(`Everything of ${user.user_id} is revoked.`, "good");
    } });
}

export function deleteUser(user) {
  return confirmName({ title: `Delete ${user.user_id}?`, name: user.user_id,
    text: "This revokes their tokens, permissions and public links. A user who owns files or buckets cannot be deleted.",
    action: "Delete", run: async () => {
      await api.del(pathOf(user.user_id));
      notify(`${user.user_id} is deleted.`, "good");
    } });
}

export async function giveBucket(user) {
  const { rows } = await api.list(path`buckets`, "buckets");
  return show((close) => html`<${FormDialog} title="Give ${user.user_id} access to a bucket" close=${close} action="Give access" submit=${async (values) => {
    const body = { principal_type: "user", principal_id: user.user_id, permission: values.permission, expires_at: "" };
    const entry = await api.post(path`${bucketAt(values.bucket_id)}/permissions`, body);
    notify(`${user.user_id} has ${entry.permission} now.`, "good");
    return entry;
  }}><label>Bucket<select name="bucket_id">${rows.map((bucket) => html`<option value=${bucket.bucket_id}>${bucket.name}</option>`)}</select></label>
    <label>May<select name="permission">${LEVELS.map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select></label>
    <p class="quiet">This covers all its files, until it is removed under <a href="#/access">Access</a>.</p></${FormDialog}>`);
}
