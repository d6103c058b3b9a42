// Labs: projects of GNS3 servers, by the backups that `filestore gns3` has stored. Which project and server a file is of
// is in its version_tag. Commands to copy contain ids and names of servers only, never a text that others can choose.
import * as api from "./api.js";
import { fileAt, path } from "./path.js";

const TAG = /^gns3-(full-)?1:[0-9a-f]{8}:[0-9a-f]{40}@([0-9a-f]{16}):([A-Za-z0-9][A-Za-z0-9._-]{0,62})$/;
const NO_TAG = "-";
const OLDER_LOOKED_AT = 5; // versions of a lab, in search of a whole one
const LOOKED_AT = 200; // requests of one page
export const PROJECTS_FOLDER = "/opt/gns3/projects";

// A file as a version of a project; null for a file that is none.
export function versionOf(file) {
  const found = TAG.exec(file.version_tag);
  if (!found) return null;
  return { ...file, archive: found[1] ? "full" : "export", serverId: found[2], server: found[3], tag: file.tag === NO_TAG ? "" : file.tag || "", message: file.message || "" };
}

// Files in the order of the API -> labs, each with its versions, the newest first.
export function labsOf(files) {
  const labs = new Map();
  for (const version of files.map(versionOf)) {
    if (!version) continue;
    const key = `${version.serverId} ${version.owner_id} ${version.project_id}`;
    if (!labs.has(key)) labs.set(key, { key, versions: [] });
    labs.get(key).versions.unshift(version);
  }
  return [...labs.values()].map((lab) => ({ ...lab, newest: lab.versions[0], name: lab.versions[0].project_name || lab.versions[0].project_id }));
}

async function isWhole(version, signal) {
  const { nodes } = await api.get(path`${fileAt(version.file_uuid)}/replicas`, { signal });
  return nodes.length > 0;
}

// By file_uuid whether a node holds the file whole. Of each lab the newest versions are asked for, until one is whole.
export async function lookAtLabs(labs, signal) {
  const found = {};
  for (const lab of labs.slice(0, LOOKED_AT)) {
    for (const version of lab.versions.slice(0, OLDER_LOOKED_AT)) {
      found[version.file_uuid] = await isWhole(version, signal);
      if (found[version.file_uuid]) break;
    }
  }
  return found;
}

export async function lookAtVersions(versions, signal) {
  const found = {};
  for (const version of versions.slice(0, LOOKED_AT)) found[version.file_uuid] = await isWhole(version, signal);
  return found;
}

export const goodOf = (lab, whole) => lab.versions.find((version) => whole?.[version.file_uuid]);

// What to do in a terminal: [what it is for, command].
export function restoreCommands(version, server) {
  if (version.archive === "export") return [["", `filestore gns3 restore ${version.file_uuid} --to ${server}`]];
  const restore = `filestore gns3 restore ${version.file_uuid} --to ${server} --local ${PROJECTS_FOLDER}`;
  return [["See what would change", `${restore} --dry-run`], ["Replace the project; what is there is backed up before", `${restore} --in-place`]];
}

// `other`: another version, or null for the project as it is now.
export function diffCommand(version, other) {
  const diff = `filestore gns3 diff ${version.file_uuid} ${version.file_uuid}`;
  if (other) return `${diff} ${other.file_uuid}`;
  return `${diff} --now --server ${version.server}${version.archive === "full" ? ` --local ${PROJECTS_FOLDER}` : ""}`;
}

// Changes tag and message of a version. A tag is of one version: the others of the lab lose it afterwards, so that
// `prune` keeps the old version and the new one if this is interrupted.
export async function describe(version, versions, { tag, message }) {
  const at = (each) => path`project-files/${each.file_uuid}`;
  const changed = await api.patch(at(version), { tag: tag || (version.tag ? NO_TAG : ""), message });
  for (const other of tag ? versions : []) {
    if (other.tag === tag && other.file_uuid !== version.file_uuid) await api.patch(at(other), { tag: NO_TAG });
  }
  return changed;
}
