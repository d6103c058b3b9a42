// Looks through files one by one for what the API lists of each alone: newest first, a bounded number at a time.
import { useEffect, useRef, useState } from "../html.js";
import * as api from "../api.js";
import { KINDS } from "../files.js";
import { isAdmin, session } from "../session.js";

const FILES_AT_ONCE = 100; // then it is asked whether to look further

// ofFile(file) -> its rows. Returns { rows, looked, total, isRunning, error, more, restart }.
export function useScan(ofFile) {
  const [state, setState] = useState({ rows: [], looked: 0, total: 0, isRunning: true, error: null });
  const [round, setRound] = useState(0);
  const files = useRef(null);
  const stop = useRef(() => {});
  async function run(until, signal) {
    setState((old) => ({ ...old, isRunning: true, error: null }));
    try {
      files.current ||= await candidates(signal);
      const all = files.current;
      for (let at = Math.max(0, until - FILES_AT_ONCE); at < Math.min(until, all.length); at += 1) {
        const rows = await ofFile(all[at], signal);
        if (signal.aborted) return;
        setState((old) => ({ ...old, rows: [...old.rows, ...rows.map((row) => ({ ...row, file: all[at] }))], looked: at + 1, total: all.length }));
      }
      setState((old) => ({ ...old, isRunning: false, total: all.length }));
    } catch (error) {
      if (!signal.aborted) setState((old) => ({ ...old, isRunning: false, error }));
    }
  }
  useEffect(() => {
    const aborting = new AbortController();
    stop.current = () => aborting.abort();
    files.current = null;
    setState({ rows: [], looked: 0, total: 0, isRunning: true, error: null });
    run(FILES_AT_ONCE, aborting.signal);
    return () => aborting.abort();
  }, [round]);
  const more = () => {
    const aborting = new AbortController();
    stop.current = () => aborting.abort();
    run(state.looked + FILES_AT_ONCE, aborting.signal);
  };
  return { ...state, more, restart: () => setRound((n) => n + 1) };
}

// Files whose links and permissions this user surely may see, newest first.
async function candidates(signal) {
  const own = session.get().user.user_id;
  const found = [];
  for (const [kind, { path, field }] of Object.entries(KINDS)) {
    const { rows } = await api.list(path, field, { signal });
    found.push(...rows.filter((row) => isAdmin() || row.owner_id === own).map((row) => ({ ...row, kind })));
  }
  return found.sort((a, b) => (a.created_at < b.created_at ? 1 : -1));
}
