// The audit logs of all members as one, newest first. Each member records what it was asked for itself.
import * as api from "./api.js";
import { path } from "./path.js";
import { mayAsk } from "./place.js";

export const PAGE_ROWS = 100;
const ROUNDS_MAX = 10; // pages without an entry that one member may answer with before somebody asks for more

// What one member has after `cursor`: { id, origin, entries, cursor, error }.
async function ask(member, query, cursor, signal) {
  const answer = { ...member, entries: [], cursor, error: null };
  if (!mayAsk(member.origin)) return { ...answer, error: { message: "This page is not allowed to connect to it." } };
  try {
    for (let round = 0; round < ROUNDS_MAX && answer.entries.length === 0; round += 1) {
      const page = await api.get(path`audit`, { query: { ...query, cursor: answer.cursor }, signal, from: member.origin });
      answer.entries = page.entries.map((entry) => ({ ...entry, member: member.id }));
      answer.cursor = page.next_cursor || "";
      if (!answer.cursor) break;
    }
    return answer;
  } catch (error) {
    if (signal?.aborted) throw error;
    return { ...answer, cursor: "", error };
  }
}

export const newest = (members, query, signal) => Promise.all(members.map((each) => ask(each, query, "", signal)));

// The same with the next page of each member that has one.
export const withOlder = (answers, query) => Promise.all(answers.map(async (known) => {
  if (!known.cursor) return known;
  const { entries, cursor, error } = await ask({ id: known.id, origin: known.origin }, query, known.cursor);
  return { ...known, entries: [...known.entries, ...entries], cursor, error };
}));

// The entries of all, newest first, back to where one of them has not been read further.
export function merged(answers) {
  const ends = answers.filter((each) => each.cursor && each.entries.length > 0).map((each) => each.entries.at(-1).time);
  const horizon = ends.sort().at(-1) || "";
  const entries = answers.flatMap((each) => each.entries).filter((entry) => entry.time >= horizon);
  return entries.sort((a, b) => (a.time < b.time ? 1 : a.time > b.time ? -1 : 0));
}

export const hasMore = (answers) => answers.some((each) => each.cursor);

export const silent = (answers) => answers.filter((each) => each.error);
