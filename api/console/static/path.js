// Addresses with data in them. `path` encodes every variable, so that data stays one part of a path whatever is in it.

export const API = "/api/v1";
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;
// A browser resolves these parts of a path however they are encoded.
const MOVING = ["", ".", ".."];

// A path of the API. Only `path` makes one, and requests take nothing else.
export class Path {
  constructor(text) {
    this.text = text;
  }

  // As browsers fetch it, below an origin.
  get url() {
    return `${API}/${this.text}`;
  }

  toString() {
    return this.text;
  }

  toJSON() {
    return this.text;
  }
}

export class NotFound extends Error {
  status = 404;
  code = "not_found";
  advice = "It may have been deleted. Go back to the list.";
}

function encoded(value, before) {
  if (value instanceof Path) return value.text;
  const text = String(value ?? "");
  if (!before.includes("?") && MOVING.includes(text)) throw new NotFound("There is nothing with this name.");
  return encodeURIComponent(text);
}

const filled = (texts, values) => texts.reduce((whole, text, at) => whole + encoded(values[at - 1], whole) + text);

// path`buckets/${id}/files`: below /api/v1/, without a slash in front. Raises NotFound for a part that is empty or leads elsewhere.
export const path = (texts, ...values) => new Path(filled(texts, values));

// address`/file/${id}?kind=${kind}`: a page of the console, for `href` and `go`.
export const address = (texts, ...values) => `#${filled(texts, values)}`;

// The id, if it is one. Raises NotFound.
export function uuid(id) {
  if (!UUID.test(id)) throw new NotFound("There is nothing with this id.");
  return id.toLowerCase();
}

export const fileAt = (id) => path`files/${uuid(id)}`;
export const bucketAt = (id) => path`buckets/${uuid(id)}`;

// `https://HOST:PORT` of a URL that somebody else wrote; "" for what is no such URL.
export function originOf(url) {
  const { protocol, origin } = URL.canParse(url) ? new URL(url) : {};
  return ["https:", "http:"].includes(protocol) ? origin : "";
}
