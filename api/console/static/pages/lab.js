// One lab: its versions with tags and messages, and the commands that restore or compare one.
import { html, useState } from "../html.js";
import * as api from "../api.js";
import { now } from "../clock.js";
import { download, fileAddress } from "../files.js";
import { moment } from "../format.js";
import { allAlarms } from "../lab-alarms.js";
import { describe, diffCommand, labsOf, lookAtVersions, restoreCommands } from "../labs.js";
import { path } from "../path.js";
import { useRights } from "../rights.js";
import { Dialog, FormDialog, show } from "../ui/dialog.js";
import { Manifest } from "../ui/manifest.js";
import { Menu } from "../ui/menu.js";
import { DataTable } from "../ui/table.js";
import { Badge, Card, Copy, Empty, ErrorBox, Facts, Heading, Loading, Name, Size, Time, When } from "../ui/parts.js";
import { AlarmLine, currentAt, LabState, useReports } from "./labs.js";

const NOW = "now";
const TAG_PATTERN = "[A-Za-z][A-Za-z0-9._\\-]{0,62}";
const WHERE = {
  export: "A browser cannot reach a GNS3 server. Run this where you are signed in to the cluster and to the GNS3 server:",
  full: "A full backup goes back on the machine of the GNS3 server. Run this there as root, with its folder of projects:",
};

const Command = ({ text, label }) => html`<p class="copy-row"><code class="copied" tabindex="0">${text}</code><${Copy} text=${text} label=${label} /></p>`;
const named = (version) => [moment(version.created_at), version.archive, version.tag, version.message].filter(Boolean).join(", ");

function Restoring({ version, servers, close }) {
  const [server, setServer] = useState(version.server);
  return html`<${Dialog} title="Restore this version" close=${() => close()} wide><p><${Name}>${named(version)}</${Name}></p>
    <label>To the GNS3 server<select onChange=${(event) => setServer(event.target.value)}>
      ${servers.map((each) => html`<option selected=${each === server}>${each}</option>`)}</select></label>
    <p>${WHERE[version.archive]}</p>
    ${restoreCommands(version, server).map(([title, text]) => html`${title && html`<h3>${title}</h3>`}<${Command} text=${text} label="Copy the command" />`)}
    <p class="quiet"><a href=${version.archive === "full" ? "#/help/gns3-full" : "#/help/gns3"} onClick=${() => close()}>What a restore does</a></p>
    <footer><button type="button" onClick=${() => close()}>Done</button></footer></${Dialog}>`;
}

function Comparing({ version, versions, close }) {
  const others = versions.filter((each) => each.file_uuid !== version.file_uuid);
  const [chosen, setChosen] = useState(others[0]?.file_uuid || NOW);
  const other = others.find((each) => each.file_uuid === chosen) || null;
  return html`<${Dialog} title="Compare this version" close=${() => close()} wide><p><${Name}>${named(version)}</${Name}></p>
    <label>With<select onChange=${(event) => setChosen(event.target.value)}>
      ${others.map((each) => html`<option value=${each.file_uuid} selected=${each.file_uuid === chosen}>${named(each)}</option>`)}
      <option value=${NOW} selected=${chosen === NOW}>the project as it is now</option></select></label>
    <p>This command shows the changes of nodes, links, files and configurations as text:</p>
    <${Command} text=${diffCommand(version, other)} label="Copy the command" />
    <p class="quiet"><a href="#/help/gns3-versions" onClick=${() => close()}>What is compared</a></p>
    <footer><button type="button" onClick=${() => close()}>Done</button></footer></${Dialog}>`;
}

const change = (version, versions) => show((close) => html`<${FormDialog} title="Tag and message" close=${close} submit=${(values) => describe(version, versions, values)}>
  <label>Tag<input name="tag" maxlength="63" pattern=${TAG_PATTERN} defaultValue=${version.tag} title="A letter first, then letters, digits and . _ -" /></label>
  <label>Message<input name="message" maxlength="255" required=${Boolean(version.message)} defaultValue=${version.message} /></label>
  <p class="quiet">Pruning keeps a version with a tag. Another version of this project that has the tag loses it. To the version
    with the tag <code>golden</code> a project can be reset.</p></${FormDialog}>`);

export default function Lab({ params, query }) {
  const list = api.useList(path`project-files`, "project_files", { project_id: params.project, status: "available" });
  const labs = labsOf(list.rows);
  const lab = labs.find(({ newest }) => newest.serverId === params.server && newest.owner_id === query.owner);
  const versions = lab?.versions || [];
  const { data: whole } = api.usePolled((signal) => lookAtVersions(versions, signal), [versions.map((each) => each.file_uuid).join()], { isLive: false });
  const everything = api.useList(path`project-files`, "project_files", { status: "available" });
  const { mayOnFile } = useRights();
  const known = useReports();
  if (!lab) {
    return html`<${Heading} title="Lab" />${list.error ? html`<${ErrorBox} error=${list.error} retry=${list.refresh} />`
      : list.isLoading ? html`<${Loading} lines=${6} />` : html`<${Empty} title="There is no such lab.">Its versions may have been deleted. <a href="#/labs">All labs</a></${Empty}>`}`;
  }
  const { newest } = lab;
  const alarms = allAlarms([lab], known.reports, known.said, whole, now()).filter((each) => each.lab);
  const servers = [...new Set([newest.server, ...labsOf(everything.rows).map((each) => each.newest.server)])];
  const menu = (version) => [
    { text: "Restore…", run: () => show((close) => html`<${Restoring} version=${version} servers=${servers} close=${close} />`) },
    { text: "Compare…", run: () => show((close) => html`<${Comparing} version=${version} versions=${versions} close=${close} />`) },
    mayOnFile(version, "write") && { text: "Tag and message…", run: async () => (await change(version, versions)) && list.refresh() },
    { text: "Download", run: () => download(version) },
  ];
  const columns = [
    { key: "created_at", title: "Made", width: "11.5rem", small: "6.2rem", render: (v) => html`<a href=${fileAddress(v, "project")}><${When} at=${v.created_at} /></a>` },
    { key: "message", title: "Tag and message", value: (v) => v.tag || v.message, render: (v) => html`<${Name} title=${`${v.tag} ${v.message}`.trim()}>${v.tag && html`<${Badge} tone="info">${v.tag}</${Badge}> `}${v.message}</${Name}>` },
    { key: "archive", title: "Kind", width: "5.5rem", hide: "medium" },
    { key: "size_bytes", title: "Size", width: "6.5rem", hide: "narrow", align: "end", render: (v) => html`<${Size} bytes=${v.size_bytes} />` },
    { key: "state", title: "State", width: "7rem", hide: "narrow", sortable: false, render: (v) => (v.file_uuid in (whole || {})
      ? html`<${Badge} tone=${whole[v.file_uuid] ? "good" : "bad"}>${whole[v.file_uuid] ? "whole" : "damaged"}</${Badge}>` : html`<span class="quiet">not checked</span>`) },
    { key: "menu", sortable: false, width: "3.2rem", align: "end", render: (v) => html`<${Menu} label="Actions on the version of ${moment(v.created_at)}" items=${menu(v)} />` },
  ];
  return html`<${Heading} title=${html`<${Name}>${lab.name}</${Name}>`} name=${lab.name} sub="A project of a GNS3 server, and its backups." />
    <${Card} title="Newest version"><${Facts} rows=${[
      ["Made", html`<${When} at=${newest.created_at} />`],
      ["State", html`<${LabState} lab=${lab} whole=${whole} alarms=${alarms} />`],
      ["Alarms", alarms.length > 0 && html`<ul class="plain-list">${alarms.map((alarm) => html`<li><${AlarmLine} alarm=${alarm} isNamed=${false} /></li>`)}</ul>`],
      ["Known to be current", known.said && html`<${Time} at=${currentAt(lab, known)} how="moment" none="no run of all projects has reported it" />`],
      ["Kind", newest.archive === "full" ? "full: every file, from the server's disk" : "export of GNS3"],
      ["Server", html`<${Name}>${newest.server}</${Name}> <span class="quiet">${newest.serverId}</span>`],
      ["Project id", html`<${Name}>${newest.project_id}</${Name}>`],
      ["Owner", html`<${Name}>${newest.owner_id}</${Name}>`],
    ]} /></${Card}>
    <${Card} title="Versions"><${DataTable} label="Versions" noun="version" rows=${versions} keyOf=${(v) => v.file_uuid} columns=${columns}
      sort=${{ key: "created_at", down: true }} search=${{ label: "Search by tag or message", text: (v) => `${v.tag} ${v.message}` }}
      isLoading=${list.isLoading} error=${list.error} refresh=${list.refresh} /></${Card}>
    ${newest.archive === "export" && html`<${Manifest} file=${newest} />`}`;
}
