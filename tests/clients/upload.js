// Uploads FILE to the tus address URL with tus-js-client, which goes on by itself after a lost connection; with
// METADATA (JSON) to an upload that it creates at URL, with PARALLEL to as many parts of it at once, with DURING as well
// the first piece of each with its creation. Prints how often it had to go on, and where it uploaded.
const fs = require("node:fs");
const tus = require("tus-js-client");

const [file, url, metadata, parallel, during] = process.argv.slice(2);
let retries = 0;
const upload = new tus.Upload(fs.createReadStream(file), {
  ...(metadata ? { endpoint: url, metadata: JSON.parse(metadata) } : { uploadUrl: url }),
  ...(Number(parallel) ? { parallelUploads: Number(parallel) } : { uploadSize: fs.statSync(file).size }),
  uploadDataDuringCreation: Boolean(during),
  chunkSize: 8 * 1024 * 1024,
  headers: { Authorization: `Bearer ${process.env.FILESTORE_TOKEN}` },
  retryDelays: [0, 200, 1000, 3000],
  onShouldRetry: () => {
    retries += 1;
    return true;
  },
  onError: (error) => {
    console.error(String(error));
    process.exit(1);
  },
  onSuccess: () => console.log(JSON.stringify({ retries, url: upload.url })),
});
upload.start();
