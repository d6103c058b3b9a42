// What a file is, by its content, as `filestore put` decides: a disk image, a project export, else a backup.

const HEAD_BYTES = 34 << 10; // an ISO image says what it is behind 32 KiB
const TAIL_BYTES = 66 << 10; // the end record of a zip, with the longest comment
const DIRECTORY_BYTES_MAX = 8 << 20;
const MAGIC = [
  ["qcow2", 0, "QFI\xfb"],
  ["vmdk", 0, "KDMV"],
  ["vmdk", 0, "# Disk DescriptorFile"],
  ["vdi", 0x40, "\x7f\x10\xda\xbe"],
  ["vhdx", 0, "vhdxfile"],
  ["vpc", 0, "conectix"],
  ["iso", 0x8001, "CD001"],
];
const PROJECT_NAMES = [".gns3p", ".gns3project"];
const IMAGE_NAMES = [".qcow2", ".vmdk", ".vdi", ".vhdx", ".iso"];
const TYPES = {
  ".zip": "application/zip", ".gz": "application/gzip", ".tgz": "application/gzip", ".bz2": "application/x-bzip2",
  ".xz": "application/x-xz", ".tar": "application/x-tar", ".json": "application/json", ".txt": "text/plain",
  ".md": "text/markdown", ".csv": "text/csv", ".html": "text/html", ".log": "text/plain", ".cfg": "text/plain",
  ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp",
  ".svg": "image/svg+xml", ".pdf": "application/pdf", ".xml": "text/xml", ".py": "text/x-python",
};

async function latin1(blob) {
  return Array.from(new Uint8Array(await blob.arrayBuffer()), (byte) => String.fromCharCode(byte)).join("");
}

const ending = (name) => /\.[^.]*$/.exec(name.toLowerCase())?.[0] || "";

export function stemOf(name) {
  const stem = name.replace(/(.)\.[^.]*$/, "$1");
  return stem || name;
}

// "" where the bytes are those of no disk image that is known.
function imageFormat(head, name) {
  for (const [format, position, magic] of MAGIC) {
    if (head.startsWith(magic, position)) return format;
  }
  return /\.(img|raw)$/i.test(name) && head.startsWith("\x55\xaa", 510) ? "raw" : "";
}

// Whether a zip has the member project.gns3: its directory, at the end, names all members.
async function hasProject(file) {
  const tail = await latin1(file.slice(Math.max(0, file.size - TAIL_BYTES)));
  const end = tail.lastIndexOf("PK\x05\x06");
  if (end < 0) return false;
  const number = (at) => [3, 2, 1, 0].reduce((sum, place) => sum * 256 + (tail.charCodeAt(end + at + place) || 0), 0);
  const [length, start] = [number(12), number(16)];
  if (start + length > file.size || length > DIRECTORY_BYTES_MAX) return tail.includes("project.gns3");
  const directory = await latin1(file.slice(start, start + length));
  return directory.includes("project.gns3");
}

// { kind, fields }: `fields` are those that the kind needs, from name and content. Raises where it cannot be read.
export async function guess(file, name = file.name) {
  const head = await latin1(file.slice(0, HEAD_BYTES));
  const format = imageFormat(head, name);
  let kind = "backup";
  if (format) kind = "image";
  else if (head.startsWith("PK\x03\x04") && (await hasProject(file))) kind = "project";
  else if (PROJECT_NAMES.includes(ending(name))) kind = "project";
  else if (IMAGE_NAMES.includes(ending(name))) kind = "image";
  return { kind, format: format || "raw", content_type: TYPES[ending(name)] || "application/octet-stream" };
}

// The fields of a new record of this kind.
export function fieldsOf(kind, name, guessed) {
  const common = { filename: name, content_type: guessed.content_type };
  if (kind === "project") return { ...common, project_id: stemOf(name) };
  if (kind === "image") return { ...common, virt_type: "qemu", format: guessed.format };
  return { ...common, backup_type: "full" };
}
