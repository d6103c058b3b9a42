// An entry of the audit log in words: who did what to what. Ids of files, buckets and runs in its target are links.
import { html } from "../html.js";
import { address } from "../path.js";
import { Name, Time } from "./parts.js";

const UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}";
const PLACE = new RegExp(`(?:(file|bucket) )?\\b(${UUID})\\b`);
const PAGES = { file: (id) => address`/file/${id}`, bucket: (id) => address`/buckets/${id}`, run: (id) => address`/jobs/runs/${id}` };

// By action: what somebody did, what could not be done, and what an id alone is the id of.
const WORDS = {
  add_coordinator: ["added the coordinator", "add the coordinator"],
  add_intermediate: ["replaced the intermediate certificate:", "replace the intermediate certificate:"],
  authenticate: ["signed in:", "sign in:"],
  cancel_job_run: ["cancelled", "cancel", "run"],
  create_join_token: ["created", "create", "join token"],
  create_public_token: ["created a link to", "create a link to"],
  create_ticket: ["started a download of", "start a download of"],
  delete_bucket: ["deleted", "delete", "bucket"],
  delete_file: ["deleted", "delete", "file"],
  delete_join_token: ["revoked", "revoke", "join token"],
  delete_user: ["deleted the user", "delete the user"],
  drain_node: ["started to drain", "drain"],
  forget_node_instance: ["allowed another directory for", "allow another directory for"],
  grant_permission: ["gave access to", "give access to"],
  hand_over_bundle: ["gave the coordinators' keys to", "give the coordinators' keys to"],
  mint_user_token: ["created a token for", "create a token for"],
  move_node: ["changed the address of", "change the address of"],
  put_user: ["changed the user", "change the user"],
  "public link": ["used a link:", "use a link:"],
  remove_coordinator: ["removed the coordinator", "remove the coordinator"],
  remove_node: ["removed", "remove"],
  remove_node_by_force: ["removed by force", "remove by force"],
  renew_user_token: ["renewed the token of", "renew the token of"],
  revoke_node: ["revoked the certificates of", "revoke the certificates of"],
  revoke_public_token: ["revoked a link to", "revoke a link to"],
  revoke_user: ["revoked everything of", "revoke everything of"],
  rotate_token_key: ["replaced the signing key of", "replace the signing key of"],
  stop_draining_node: ["stopped draining", "stop draining"],
  ticket: ["used a download address:", "use a download address:"],
  transfer_leader: ["handed the lead to", "hand the lead to"],
  trigger_job: ["started the job", "start the job"],
  update_file: ["changed", "change", "file"],
  withdraw_permission: ["removed access to", "remove access to"],
};
// What members do themselves, with a join token: "node-3 joined".
const JOINED = { join: ["joined", "join"], add_coordinator: ["joined as a coordinator", "join as a coordinator"] };

export const ACTIONS = ["join", ...Object.keys(WORDS)].sort();

const isDone = (entry) => entry.outcome === "ok";
const isByMember = (entry) => entry.action in JOINED && entry.principal.startsWith("join token");
const kindOf = (entry) => WORDS[entry.action]?.[2] || "";

export function who(entry) {
  if (isByMember(entry)) return entry.target;
  if (entry.principal === "-") return "an unknown caller";
  return entry.principal.replace(new RegExp(` ${UUID}$`), "");
}

export function didWhat(entry) {
  const [past, base] = (isByMember(entry) ? JOINED : WORDS)[entry.action] || [entry.action.replaceAll("_", " "), entry.action.replaceAll("_", " ")];
  return isDone(entry) ? past : `could not ${base}`;
}

// `kind`: what an id without a word before it is the id of.
export function Target({ text, kind = "" }) {
  const found = PLACE.exec(text);
  if (!found) return html`<${Name}>${text}</${Name}>`;
  const [whole, said, id] = found;
  const what = said || kind;
  const [before, after] = [text.slice(0, found.index), text.slice(found.index + whole.length)];
  const shown = what === "join token" ? "a join token" : `${what} …${id.slice(-6)}`;
  return html`${before && html`<${Name}>${before}</${Name}>`}${what in PAGES ? html`<a href=${PAGES[what](id)} title=${id}>${shown}</a>`
    : html`<span title=${id}>${shown}</span>`}${after && html`<${Name}>${after}</${Name}>`}`;
}

export const EntryTarget = ({ entry }) => !isByMember(entry) && html`<${Target} text=${entry.target} kind=${kindOf(entry)} />`;

// One line of a list of events.
export const Event = ({ entry }) => html`<li class="spread"><span class="one-line event"><${Name}>${who(entry)}</${Name}> <span
    class="quiet">${didWhat(entry)}</span> <span><${EntryTarget} entry=${entry} /></span>
    ${!isDone(entry) && html` <span class="quiet">(${entry.outcome.replaceAll("_", " ")})</span>`}</span>
  <span class="right"><${Time} at=${entry.time} /></span></li>`;
