// What can be done with a node: drain, undrain, remove, revoke, and let another one join.
import { html, useState } from "../html.js";
import * as api from "../api.js";
import { urlOf } from "../cluster.js";
import { counted, relative } from "../format.js";
import { path } from "../path.js";
import { confirmName } from "./confirm-name.js";
import { confirm, Dialog, FormDialog, show } from "./dialog.js";
import { Copy, Name } from "./parts.js";
import { notify } from "./toast.js";

const MEMBER = "[a-z0-9]([a-z0-9\\-]{0,61}[a-z0-9])?";
const LIVES = [[1800, "30 minutes"], [7200, "2 hours"], [86400, "a day"]];

export function drain(node) {
  return show((close) => html`<${Draining} node=${node} close=${close} />`);
}

function Draining({ node, close }) {
  const [isRefused, setIsRefused] = useState(false);
  const submit = async (values) => {
    try {
      await api.post(path`cluster/nodes/${node.id}/drain`, {}, { query: { force: values.force ? 1 : "" } });
    } catch (error) {
      setIsRefused(error.code === "conflict");
      throw error;
    }
    notify(`${node.id} is draining: the job drain empties it.`, "good");
  };
  return html`<${FormDialog} title="Drain ${node.id}?" close=${close} action="Drain" submit=${submit}>
    <p><strong>${node.id}</strong> receives no new files, and the job drain moves its content to other nodes. It continues to serve
    until then. You can take this back.</p>
    ${isRefused && html`<label class="flag"><input type="checkbox" name="force" value="1" />Drain it anyway, although others need
      damaged copies that it keeps</label>`}</${FormDialog}>`;
}

export async function undrain(node) {
  await api.del(path`cluster/nodes/${node.id}/drain`);
  notify(`${node.id} takes new files again.`, "good");
}

export function remove(node) {
  return confirmName({
    title: `Remove ${node.id} from the cluster?`,
    name: node.id,
    text: "The node is removed permanently and its certificates are revoked. Drain it first: if it still holds content, the removal is rejected.",
    action: "Remove it",
    run: async (values) => {
      const query = { force: values.force ? 1 : "", is_gone: values.force && values.is_gone ? 1 : "", give_up: values.give_up ? 1 : "" };
      const gone = await api.del(path`cluster/nodes/${node.id}`, { query });
      const left = gone.replicas + gone.uploads > 0 ? ` ${counted(gone.replicas, "replica")} and ${counted(gone.uploads, "upload")} went with it.` : "";
      notify(`${node.id} is removed.${left}`, left ? "warn" : "good");
    },
    children: (refusal) => refusal?.code === "conflict" && html`<fieldset><legend>Is it impossible to drain the node?</legend>
      <label class="flag"><input type="checkbox" name="force" value="1" />The node is down for good: give up its replicas (force)</label>
      <label class="flag"><input type="checkbox" name="is_gone" value="1" />The node was destroyed: do not wait until it counts as down (is_gone)</label>
      <label class="flag"><input type="checkbox" name="give_up" value="1" />Remove the node even if that loses content that no other live node has (give_up)</label></fieldset>`,
  });
}

export async function revoke(node) {
  const revoked = await confirmName({
    title: `Revoke the certificates of ${node.id}?`,
    name: node.id,
    text: "For a node that was stolen or copied. The cluster rejects it at once, and its replicas do not count. To come back, it must join again.",
    action: "Revoke them",
    run: () => api.post(path`cluster/nodes/${node.id}/revoke`),
  });
  if (!revoked) return false;
  const sole = revoked.only_there + revoked.uploads_only_there.length;
  await show((close) => html`<${Dialog} title="${node.id} is revoked" close=${close}>
    <p>${counted(revoked.replicas, "replica")} must be created on other nodes. Repair does that automatically.</p>
    ${sole > 0 && html`<p><strong>${counted(revoked.only_there, "blob")} and ${counted(revoked.uploads_only_there.length, "upload")} are on no other node
      that is alive. Keep its disk, and bring the node back.</strong></p>`}
    <footer><button type="button" onClick=${() => close(true)} autofocus>Close</button></footer></${Dialog}>`);
  return true;
}

export function forgetInstance(node) {
  return confirm({
    title: "Allow another directory for this node?",
    names: [node.id],
    text: "For a data directory that was restored from a backup. First stop every other process of this node. Its replicas count again after they were compared.",
    action: "Allow it",
    run: async () => {
      await api.del(path`cluster/nodes/${node.id}/instance`);
      notify(`The next process with the certificate of ${node.id} is accepted as this node.`, "good");
    },
  });
}

const ADDRESS = "[0-9a-zA-Z.:\\-]+";

// The name and the address of a new machine, as fields.
const Machine = ({ example }) => html`<div class="pair"><label>Name of the machine<input name="name" required pattern=${MEMBER} maxlength="63" placeholder=${example}
      title="Small letters, digits and hyphens" autocomplete="off" autofocus /></label>
    <label>Its address<input name="address" required placeholder="10.0.0.14 or ${example}.example.org" autocomplete="off" maxlength="253" pattern=${ADDRESS}
      title="An IP address or a DNS name, where clients and other members reach it" /></label></div>`;

// The two commands that add a machine. The first makes a secret with the key that only coordinators have, which is why no
// page can show it.
export function addMachine({ nodeOnly }) {
  const what = nodeOnly ? "node" : "coordinator";
  return show((close) => html`<${FormDialog} title="Add a ${what}" close=${close} action="Show the commands" submit=${(values) => values}>
    <p>${nodeOnly ? "The new machine becomes a node, which stores the content of files." : "The new machine becomes a coordinator and a node. Three or five coordinators are sensible."}
      It needs the Debian package of Filestore.</p><${Machine} example=${nodeOnly ? "n4" : "c4"} /></${FormDialog}>`).then((values) => values && showCommands(what, values, nodeOnly));
}

function showCommands(what, { name, address }, nodeOnly) {
  const token = "sudo filestore token setup --data /var/lib/filestore/coordinator";
  const join = `sudo filestore setup --join --name ${name} --address ${address}${nodeOnly ? " --node-only" : ""}`;
  return show((close) => html`<${Dialog} title="Add the ${what} ${name}" close=${close} wide>
    <p>1. On a machine that has a coordinator. This prints a line with a secret text that works once, within half an hour:</p>
    <pre class="text command" tabindex="0" aria-label="The first command">${token}</pre><p><${Copy} text=${token} label="Copy the first command" /></p>
    <p>2. On the new machine. This asks for that text, which begins with FSS1:</p>
    <pre class="text command" tabindex="0" aria-label="The second command">${join}</pre><p><${Copy} text=${join} label="Copy the second command" /></p>
    <p class="quiet">The ${what} appears in the list within a minute, and starts with its machine from then on. Add <code>--zone</code> if machines may fail
      together, such as those of a rack. <a href="#/help/machines?at=add-a-machine">More about adding machines</a></p>
    <footer>${nodeOnly && html`<button type="button" class="outline" onClick=${() => {
      close(true);
      addByToken(name, address);
    }}>Without setup…</button>`}<button type="button" onClick=${() => close(true)}>Done</button></footer></${Dialog}>`);
}

// A join token, and the command that makes a node with it: for machines that are set up by other means.
async function addByToken(name, address) {
  const made = await show((close) => html`<${FormDialog} title="Add a node without setup" close=${close} action="Create a join token" submit=${async (values, { signal }) => {
    const authority = await api.get(path`cluster/ca`, { signal });
    const minted = await api.post(path`cluster/join-tokens`, { node_id: name, ttl_seconds: Number(values.ttl_seconds) });
    return { minted, coordinator: urlOf(authority.coordinators[0]) };
  }}><p>With a join token, no coordinator has to be at hand. The next step shows the command for it.</p>
    <label>Lifetime of the token<select name="ttl_seconds">${LIVES.map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select></label></${FormDialog}>`);
  if (made) await showToken({ ...made, values: { node_id: name, address } });
}

const showToken = ({ minted, values, coordinator }) => {
  const command = `sudo -u filestore filestore node join --id ${values.node_id} --data /var/lib/filestore/node --coordinator ${coordinator} --address ${values.address} --token-file - <<'END'
${minted.token}
END
sudo systemctl enable --now filestore-node`;
  return show((close) => html`<${Dialog} title="Join ${values.node_id}" close=${close} wide>
    <p>Run this on the new machine, where the Debian package of Filestore is installed. The node also starts when the machine does.
      The command contains the token, which is shown only once and expires ${relative(minted.expires_at)}.</p>
    <pre class="text command" tabindex="0" aria-label="The commands">${command}</pre>
    <p class="quiet">The node appears in the list once it has joined. Without the package, run <code>filestore node join</code> and${" "}
      <code>filestore node run</code> with another directory.</p>
    <footer><${Copy} text=${command} label="Copy the commands" class="outline" /><button type="button" onClick=${() => close(true)}>Done</button></footer></${Dialog}>`);
};

export async function endToken(token) {
  return confirm({ title: "Revoke this join token?", names: [token.token_id], text: "No node can join with it any more. Nodes that have joined with it stay.",
    action: "End it", run: () => api.del(path`cluster/join-tokens/${token.token_id}`) });
}
