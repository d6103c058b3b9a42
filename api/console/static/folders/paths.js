// Paths of folders as the API has them: "lab/r1", and "" for the top of a bucket. No markup.
const DEPTH_MAX = 64;
const NAME_CHARS_MAX = 255;
const PATH_CHARS_MAX = 1024;
const CONTROL = /[\x00-\x1f\x7f-\x9f\u2028\u2029]/;

export const partsOf = (path) => path.split("/").filter(Boolean);
export const joined = (...paths) => paths.flatMap(partsOf).join("/");
export const nameOf = (path) => partsOf(path).at(-1) || "";
export const parentOf = (path) => partsOf(path).slice(0, -1).join("/");

// Whether a folder is `folder` or below it.
export const isWithin = (path, folder) => {
  const outer = partsOf(folder);
  const parts = partsOf(path);
  return outer.every((part, at) => parts[at] === part);
};

// What leads from `folder` to a path within it.
export const below = (path, folder) => partsOf(path).slice(partsOf(folder).length).join("/");

// What the API says of a path that it refuses: a sentence, "" if the path is accepted.
export function wrongIn(path) {
  const parts = partsOf(path);
  if (parts.some((part) => part === "." || part === "..")) return "“.” and “..” are not names of folders.";
  if (CONTROL.test(path)) return "Names of folders contain no control characters.";
  if (parts.length > DEPTH_MAX) return `At most ${DEPTH_MAX} folders can be in each other.`;
  if (parts.some((part) => [...part].length > NAME_CHARS_MAX)) return `The name of a folder has at most ${NAME_CHARS_MAX} characters.`;
  if ([...path].length > PATH_CHARS_MAX) return `A path has at most ${PATH_CHARS_MAX} characters.`;
  return "";
}
