// The address behind `#`: which page is shown. "#/file/ID?tab=links" -> { path: "/file/ID", query: {tab} }.
import { useLayoutEffect, useState } from "./html.js";

const PATTERNS = { uuid: "([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", token: "([\\w-]+)" };

export function parse(hash) {
  const [path, search = ""] = hash.replace(/^#/, "").split("?");
  return { path: path || "/", query: Object.fromEntries(new URLSearchParams(search)) };
}

export const current = () => parse(location.hash);

export function go(hash) {
  location.hash = hash;
}

// The same page with another query; no step in the history.
export function replaceQuery(query) {
  const { path } = current();
  const search = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
  history.replaceState(null, "", `#${path}${search ? `?${search}` : ""}`);
}

export function useRoute() {
  const [route, setRoute] = useState(current);
  useLayoutEffect(() => {
    const changed = () => setRoute(current());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

// The first route whose pattern fits, with what stands for its `:names`. Routes: [pattern, anything...].
export function match(routes, path) {
  for (const route of routes) {
    const names = [];
    const source = route[0].replace(/:(\w+)/g, (_, name) => (names.push(name), PATTERNS[name] || "([^/]+)"));
    const found = new RegExp(`^${source}$`).exec(path);
    if (found) {
      try {
        const values = found.slice(1).map(decodeURIComponent);
        return { route, params: Object.fromEntries(names.map((name, index) => [name, values[index]])) };
      } catch {
        return null; // a malformed escape
      }
    }
  }
  return null;
}
