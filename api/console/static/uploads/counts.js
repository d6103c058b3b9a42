// How many uploads there are: who shows only this is not drawn again with every progress.
import { useStore } from "../html.js";
import { busy, uploads } from "./engine.js";
import { memory } from "./memory.js";

export const useBusyCount = () => useStore(uploads, busy);

const underWay = (all) => all.filter((each) => busy([each]) > 0).map((each) => each.file_uuid).join(" ");

// How many uploads of this user were interrupted: this browser remembers them, and this tab is not sending them.
export function useStoppedCount(user) {
  const entries = useStore(memory);
  const own = useStore(uploads, underWay).split(" ");
  return entries.filter((entry) => entry.user === user && !own.includes(entry.file_uuid)).length;
}
