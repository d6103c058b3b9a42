// GNS3 labs: which projects of which servers have backups, how good the newest is, and what needs attention.
import { html, useEffect, useState } from "../html.js";
import * as api from "../api.js";
import { now } from "../clock.js";
import { counted } from "../format.js";
import { allAlarms, readReports, REPORTS, reportsOf, toneOf, wordOf } from "../lab-alarms.js";
import { goodOf, labsOf, lookAtLabs } from "../labs.js";
import { address, path } from "../path.js";
import { nodeConsole, servesContent } from "../place.js";
import { DataTable } from "../ui/table.js";
import { Badge, Card, Empty, ErrorBox, Heading, Name, Size, Time } from "../ui/parts.js";

const SHOWN = 8; // alarms; the table has the others
const LOOK_AGAIN_MS = 60_000; // as a backup becomes overdue by the time alone

export const labAddress = ({ newest }) => address`/labs/${newest.serverId}/${newest.project_id}?owner=${newest.owner_id}`;

// The reports of all servers that the user may see: { reports, said, error, refresh }; `said` is undefined until they are read.
export function useReports() {
  const list = api.useList(path`backups`, "backups", { filename: REPORTS, status: "available" });
  const reports = servesContent ? reportsOf(list.rows) : [];
  const ids = reports.map(({ run, check }) => `${run?.file_uuid} ${check?.file_uuid}`).join();
  const read = api.usePolled((signal) => readReports(reports, signal), [ids], { isLive: false });
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((count) => count + 1), LOOK_AGAIN_MS);
    return () => clearInterval(timer);
  }, []);
  return { reports, said: list.isLoading ? undefined : read.data, error: list.error || read.error, refresh: () => (list.refresh(), read.refresh()) };
}

// When a backup of a lab was last known to be current, as the last run has reported it; "" if no run has.
export function currentAt(lab, { reports, said }) {
  const report = reports.find(({ serverId, owner_id }) => serverId === lab.newest.serverId && owner_id === lab.newest.owner_id);
  return said?.[report?.key]?.run?.projects?.[lab.newest.project_id]?.good_at || "";
}

// One alarm: what it is about, and since when.
export const AlarmLine = ({ alarm, isNamed = true }) => html`<${Badge} tone=${toneOf(alarm)}>${wordOf(alarm)}</${Badge}>${" "}
  ${isNamed && html`<strong>${alarm.lab ? html`<a href=${labAddress(alarm.lab)}><${Name}>${alarm.name || alarm.lab.name}</${Name}></a>`
    : html`<${Name}>${alarm.name || alarm.server}</${Name}>`}</strong>${alarm.project_id && html` <span class="quiet">on <${Name} title=${alarm.serverId}>${alarm.server}</${Name}></span>`}: `}
  <bdi>${alarm.text}</bdi>${alarm.since && html` since <${Time} at=${alarm.since} how="moment" />`}`;

function Alarms({ alarms, known, labs }) {
  const { reports, said, error, refresh } = known;
  const [isAll, showAll] = useState(false);
  if (!servesContent) return html`<p class="banner">A coordinator has no reports of runs: <a href=${nodeConsole()}>the console of a node</a> shows alarms.</p>`;
  const runs = reports.map((each) => ({ ...each, run: said?.[each.key]?.run })).filter(({ run }) => run);
  const has = ({ newest }) => runs.some(({ serverId, owner_id }) => serverId === newest.serverId && owner_id === newest.owner_id);
  const unwatched = [...new Set(labs.filter((lab) => !has(lab)).map(({ newest }) => newest.server))];
  return html`<${Card} title="Alarms"><${ErrorBox} error=${error} retry=${refresh} />
    ${alarms.length > 0 && html`<ul class="plain-list alarms">${alarms.slice(0, isAll ? alarms.length : SHOWN).map((alarm) => html`<li><${AlarmLine} alarm=${alarm} /></li>`)}</ul>`}
    ${alarms.length > SHOWN && !isAll && html`<p><button type="button" class="small outline" onClick=${() => showAll(true)}>Show all ${alarms.length.toLocaleString("en")}</button></p>`}
    ${said && runs.map(({ key, serverId, run }) => html`<p key=${key} class="quiet"><${Name} title=${serverId}>${run.server}</${Name}>:
      ${" "}${counted(Object.keys(run.projects).length, "project")}, last run <${Time} at=${run.ended_at} />${alarms.some((each) => each.serverId === serverId) ? "" : ", no alarms"}.</p>`)}
    ${said && unwatched.length > 0 && html`<p class="quiet">No report of a run: ${unwatched.map((server, at) => html`${at > 0 && ", "}<${Name}>${server}</${Name}>`)}.
      Until a run of all projects stores one, only damage raises an alarm. <a href="#/help/gns3-nightly?at=alarms">What raises alarms</a></p>`}</${Card}>`;
}

// The verdict on a lab: its worst alarm, or whether its newest version is whole, as the cluster knows.
export function LabState({ lab, whole, alarms = [] }) {
  const worst = alarms.find((each) => toneOf(each) === "bad" && each.code !== "damaged") || alarms.find((each) => each.code !== "damaged");
  if (worst && whole?.[lab.newest.file_uuid] !== false) return html`<${Badge} tone=${toneOf(worst)} title=${worst.text}>${wordOf(worst)}</${Badge}>`;
  if (!(lab.newest.file_uuid in (whole || {}))) return html`<span class="quiet">not checked</span>`;
  if (whole[lab.newest.file_uuid]) return html`<${Badge} tone="good">whole</${Badge}>`;
  const told = goodOf(lab, whole) ? "No node holds the newest version whole; an older one is whole" : "No node holds any of the newest versions whole";
  return html`<${Badge} tone=${goodOf(lab, whole) ? "warn" : "bad"} title=${told}>damaged</${Badge}>`;
}

export default function Labs() {
  const list = api.useList(path`project-files`, "project_files", { status: "available" });
  const labs = labsOf(list.rows);
  const newest = labs.map((lab) => lab.newest.file_uuid).join();
  const { data: whole } = api.usePolled((signal) => lookAtLabs(labs, signal), [newest], { isLive: false });
  const known = useReports();
  const alarms = allAlarms(labs, known.reports, known.said, whole, now());
  const alarmsOfLab = (lab) => alarms.filter((each) => each.lab?.key === lab.key);
  const servers = new Map(labs.map((lab) => [lab.newest.serverId, `${lab.newest.server} (${lab.newest.serverId})`]));
  const good = (lab) => (lab.newest.file_uuid in (whole || {}) ? goodOf(lab, whole)?.created_at || "" : lab.newest.created_at);
  const columns = [
    { key: "name", title: "Project", value: (lab) => lab.name, render: (lab) => html`<a href=${labAddress(lab)}><${Name} title=${lab.newest.project_id}>${lab.name}</${Name}></a>` },
    { key: "server", title: "Server", width: "9rem", hide: "medium", value: (lab) => lab.newest.server, render: (lab) => html`<${Name} title=${lab.newest.serverId}>${lab.newest.server}</${Name}>` },
    { key: "good", title: "Last good", width: "8rem", small: "5.8rem", value: good, render: (lab) => html`<${Time} at=${good(lab)} none="none" />` },
    { key: "current", title: "Current", width: "8rem", hide: "medium", value: (lab) => currentAt(lab, known), render: (lab) => html`<${Time} at=${currentAt(lab, known)} none="unknown" />` },
    { key: "archive", title: "Kind", width: "5.5rem", hide: "wide", value: (lab) => lab.newest.archive, render: (lab) => lab.newest.archive },
    { key: "size", title: "Size", width: "6.5rem", hide: "narrow", align: "end", value: (lab) => lab.newest.size_bytes, render: (lab) => html`<${Size} bytes=${lab.newest.size_bytes} />` },
    { key: "versions", title: "Versions", width: "6.2rem", hide: "medium", align: "end", value: (lab) => lab.versions.length, render: (lab) => lab.versions.length.toLocaleString("en") },
    { key: "state", title: "State", width: "7.5rem", small: "5.9rem", sortable: false, render: (lab) => html`<${LabState} lab=${lab} whole=${whole} alarms=${alarmsOfLab(lab)} />` },
  ];
  const filters = servers.size > 1 ? [{ key: "server", title: "Server", options: [...servers], accept: (lab, value) => lab.newest.serverId === value }] : [];
  if (alarms.some((each) => each.lab)) filters.push({ key: "alarms", title: "Alarms", options: [["yes", "with alarms"]], accept: (lab) => alarmsOfLab(lab).length > 0 });
  return html`<${Heading} title="Labs" sub="Projects of GNS3 servers that have backups, and how good the newest one is." />
    ${(labs.length > 0 || known.reports.length > 0) && html`<${Alarms} ...${{ alarms, known, labs }} />`}
    <${DataTable} label="Labs" noun="lab" rows=${labs} keyOf=${(lab) => lab.key} columns=${columns} sort=${{ key: "good", down: true }}
      search=${{ label: "Search by project, tag or message", text: (lab) => `${lab.name} ${lab.newest.project_id} ${lab.versions.map((v) => `${v.tag} ${v.message}`).join(" ")}` }}
      filters=${filters}
      isLoading=${list.isLoading} error=${list.error} refresh=${list.refresh}
      empty=${html`<${Empty} title="No labs yet.">Back up the projects of a GNS3 server with <code>filestore gns3 backup</code>. <a href="#/help/gns3">How to</a></${Empty}>`} />`;
}
