// Uploads FILE to the tus address URL with tus-js-client, which goes on by itself after a lost connection; with
// METADATA (JSON) to an upload that it creates at URL, with PARALLEL to as many parts of it at once, with DURING as well
// the first piece of each with its creation. Prints how often it had to go on, and where it uploaded.
const crypto = require("node:crypto");
const fs = require("node:fs");
const tus = require("tus-js-client");

const [file, url, metadata, parallel, during] = process.argv.slice(2);
let retries = 0;
// Before it goes on: is what has arrived the beginning of this file? Of parts only the whole is compared, at the end.
async function compare(request, response) {
  const told = request.getMethod() === "HEAD" && response.getHeader("Upload-Prefix-Digest");
  if (!told || Number(parallel)) return;
  const hash = crypto.createHash("sha256");
  const arrived = fs.createReadStream(file, { end: Number(response.getHeader("Upload-Offset")) - 1 });
  for await (const piece of arrived) hash.update(piece);
  if (told !== `sha-256=:${hash.digest("base64")}:`) throw new Error("another file was begun here");
}
const upload = new tus.Upload(fs.createReadStream(file), {
  ...(metadata ? { endpoint: url, metadata: JSON.parse(metadata) } : { uploadUrl: url }),
  ...(Number(parallel) ? { parallelUploads: Number(parallel) } : { uploadSize: fs.statSync(file).size }),
  uploadDataDuringCreation: Boolean(during),
  chunkSize: 8 * 1024 * 1024,
  headers: { Authorization: `Bearer ${process.env.FILESTORE_TOKEN}` },
  retryDelays: [0, 200, 1000, 3000],
  onAfterResponse: compare,
  onShouldRetry: (error) => {
    retries += 1;
    return !String(error).includes("another file");
  },
  onError: (error) => {
    console.error(String(error));
    process.exit(1);
  },
  onSuccess: () => console.log(JSON.stringify({ retries, url: upload.url })),
});
upload.start();
