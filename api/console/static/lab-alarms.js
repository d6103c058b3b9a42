// What needs attention about backups of labs, by the reports that `filestore gns3` stores. The rules are those of
// deploy/gns3/alarms/rules.py; tests/unit/deploy/gns3/alarms/cases.json has the cases of both.
import * as api from "./api.js";
import { fileAt } from "./path.js";

export const REPORTS = "gns3-report-";
const NAME = /^gns3-report-([0-9a-f]{16})\.(run|check)\.json$/;
const READ_MAX = 100; // reports of one page
const BYTES_MAX = 8_000_000; // of one report: some ten thousand projects
const BAD = ["no_run", "overdue", "damaged"];
const WORDS = { no_run: "no run", run_failed: "run failed", no_backup: "no backup", check_failed: "check failed" };

// An alarm as a badge has it.
export const toneOf = ({ code }) => (BAD.includes(code) ? "bad" : "warn");
export const wordOf = ({ code }) => WORDS[code] || code;

// Records of files in the order of the API -> the newest report of each server and owner, as
// { serverId, owner_id, run, check }, which are records.
export function reportsOf(files) {
  const found = new Map();
  for (const file of files) {
    const [, serverId, kind] = NAME.exec(file.filename) || [];
    if (!serverId) continue;
    const key = `${serverId} ${file.owner_id}`;
    found.set(key, { ...found.get(key), key, serverId, owner_id: file.owner_id, [kind]: file });
  }
  return [...found.values()];
}

// What the reports say: by the key of each, { run, check }.
export async function readReports(reports, signal) {
  const found = {};
  for (const { key, run, check } of reports.slice(0, READ_MAX)) {
    found[key] = { run: run && (await read(run, signal)), check: check && (await read(check, signal)) };
  }
  return found;
}

async function read(file, signal) {
  if (file.size_bytes > BYTES_MAX) return null;
  try {
    const answer = await api.request("GET", fileAt(file.file_uuid), { signal, raw: true });
    return checked(await answer.json());
  } catch (error) {
    if (error.status === 404 || error instanceof SyntaxError) return null; // a run has replaced it; the list has the new one soon
    throw error;
  }
}

const texts = (from, names) => Object.fromEntries(names.map((name) => [name, typeof from?.[name] === "string" ? from[name] : ""]));
const textsOfEach = (from, names) => Object.fromEntries(Object.entries(Object(from)).map(([key, each]) => [key, texts(each, names)]));

// A report with texts where texts belong, whatever somebody has stored under its name; null for that of a later release.
export function checked(report) {
  if (report?.version !== 1) return null;
  return {
    ...texts(report, ["server", "kind", "ended_at"]),
    overdue_after_s: Number(report.overdue_after_s) || 0,
    projects: textsOfEach(report.projects, ["name", "good_at", "status"]),
    alarms: (Array.isArray(report.alarms) ? report.alarms : []).map((each) => texts(each, ["code", "text", "project_id", "name", "since"])),
    backups: textsOfEach(report.backups, ["project_id", "name", "error"]),
  };
}

// Whether a time is longer ago, or as far in the future, which a wrong clock leaves; "" is never.
const isOld = (at, afterS, nowMs) => !(Math.abs(nowMs - Date.parse(at)) <= afterS * 1000);

// The alarms of a server by its reports, if it has them. `newest`: the file_uuids of the newest backups of each project.
export function alarmsOf(run, check, newest, nowMs) {
  const found = [];
  if (run && isOld(run.ended_at, run.overdue_after_s, nowMs)) {
    found.push({ code: "no_run", text: "No run of all projects has ended", project_id: "", name: "", since: run.ended_at });
  }
  for (const [project_id, { name, good_at, status }] of Object.entries(run?.projects || {})) {
    if (!isOld(good_at, run.overdue_after_s, nowMs)) continue;
    const running = status === "running" ? "Its nodes ran during the last run. " : "";
    found.push({ code: "overdue", text: `${running}No backup is known to be current`, project_id, name, since: good_at });
  }
  found.push(...(run?.alarms || []));
  for (const [file_uuid, { project_id, name, error }] of Object.entries(check?.backups || {})) {
    if (!error || !newest.includes(file_uuid)) continue;
    found.push({ code: "check_failed", text: `The last check of the newest backup failed: ${error}`, project_id, name, since: "" });
  }
  return found;
}

// The newest backup of each kind.
const newestOf = (lab) => ["export", "full"].map((kind) => lab.versions.find((each) => each.archive === kind)?.file_uuid).filter(Boolean);

// All that needs attention: alarms with the server they are of, and the lab if there is one. `said`: what the reports say; `whole`: by file_uuid.
export function allAlarms(labs, reports, said, whole, nowMs) {
  const of = ({ serverId, owner_id }, project_id) => labs.find(({ newest }) => newest.serverId === serverId && newest.owner_id === owner_id && newest.project_id === project_id);
  const found = reports.filter(({ key }) => said?.[key]).flatMap((report) => {
    const { run, check } = said[report.key];
    const own = labs.filter(({ newest }) => newest.serverId === report.serverId && newest.owner_id === report.owner_id);
    const server = run?.server || check?.server || report.serverId;
    return alarmsOf(run, check, own.flatMap(newestOf), nowMs).map((each) => ({ ...each, server, serverId: report.serverId, lab: of(report, each.project_id) }));
  });
  for (const lab of labs.filter(({ newest }) => whole?.[newest.file_uuid] === false)) {
    const { server, serverId, project_id } = lab.newest;
    found.push({ code: "damaged", text: "No node holds the newest backup whole", project_id, name: lab.name, since: "", server, serverId, lab });
  }
  return found.sort((a, b) => Number(Boolean(a.project_id)) - Number(Boolean(b.project_id)) || BAD.includes(b.code) - BAD.includes(a.code));
}
