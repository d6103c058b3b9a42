// Where a user is signed in: one's own sessions, or for administrators those of another user.
import { html } from "../html.js";
import * as api from "../api.js";
import { path } from "../path.js";
import { close, isAdmin, session } from "../session.js";
import { endSession, endSessions } from "../ui/people-actions.js";
import { DataTable } from "../ui/table.js";
import { Action, Empty, Heading, Name, Time } from "../ui/parts.js";

const ENDED = "You ended the session that you used.";

const nameOf = (s) => (s.is_current ? `${s.label || "token"} (this one)` : s.label || "token");

export default function Sessions({ query }) {
  const me = session.get().user.user_id;
  const user = (isAdmin() && query.user) || me;
  const isOwn = user === me;
  const list = api.useList(path`auth/users/${user}/sessions`, "sessions");
  const end = (row) => async () => {
    if (!(await endSession(user, row))) return;
    if (row.is_current) close(ENDED);
    else list.refresh();
  };
  const endAll = async () => {
    if (!(await endSessions(user, isOwn))) return;
    if (isOwn) close("You ended all your sessions.");
    else list.refresh();
  };
  const columns = [
    { key: "label", title: "Session", render: (s) => html`<${Name}>${nameOf(s)}</${Name}>` },
    { key: "created_by", title: "Made by", width: "9rem", hide: "narrow", render: (s) => html`<${Name}>${s.created_by}</${Name}>` },
    { key: "created_at", title: "Began", width: "8rem", hide: "medium", render: (s) => html`<${Time} at=${s.created_at} />` },
    { key: "renewed_at", title: "Renewed", width: "8rem", hide: "narrow", render: (s) => html`<${Time} at=${s.renewed_at} />` },
    { key: "expires_at", title: "Ends", width: "8rem", small: "5rem", render: (s) => html`<${Time} at=${s.expires_at} />` },
    { key: "end", sortable: false, width: "6rem", small: "5.4rem", align: "end", render: (s) => html`<${Action} label="End ${s.label || s.session_id}…" run=${end(s)}>End…</${Action}>` },
  ];
  return html`<${Heading} title=${isOwn ? "Where you are signed in" : html`Sessions of <${Name}>${user}</${Name}>`} name=${isOwn ? "Sessions" : `Sessions of ${user}`}
      sub="A session is a token with its renewals. Whether a token is in use is not recorded.">
      <${Action} tone="danger" run=${endAll}>End all…</${Action}></${Heading}>
    <${DataTable} label="Sessions" noun="session" rows=${list.rows} keyOf=${(s) => s.session_id} columns=${columns} sort=${{ key: "created_at", down: true }}
      isLoading=${list.isLoading} error=${list.error} refresh=${list.refresh}
      empty=${html`<${Empty} title="No sessions are listed.">Tokens that were made before sessions were recorded still work. "End all" ends them, too.</${Empty}>`} />`;
}
