// Which page an address shows: [pattern, how its module is loaded, { admin: for administrators only, isPublic: without
// signing in, isHelp: the same, within the frame of who is signed in }]. `:uuid` fits an id only. The module's default export is a component; it gets { params, query }.
export const ROUTES = [
  ["/", () => import("./pages/overview.js")],
  ["/projects", () => import("./pages/projects.js")],
  ["/images", () => import("./pages/images.js")],
  ["/backups", () => import("./pages/backups.js")],
  ["/buckets", () => import("./pages/buckets.js")],
  ["/buckets/:uuid", () => import("./pages/bucket.js")],
  ["/file/:uuid", () => import("./pages/file.js")],
  ["/uploads", () => import("./pages/uploads.js")],
  ["/trash", () => import("./pages/trash.js")],
  ["/shares", () => import("./pages/shares.js")],
  ["/access", () => import("./pages/access.js")],
  ["/nodes", () => import("./pages/nodes.js"), { admin: true }],
  ["/nodes/:id", () => import("./pages/node.js"), { admin: true }],
  ["/coordinators", () => import("./pages/coordinators.js"), { admin: true }],
  ["/jobs", () => import("./pages/jobs.js"), { admin: true }],
  ["/jobs/runs/:uuid", () => import("./pages/run.js"), { admin: true }],
  ["/users", () => import("./pages/users.js"), { admin: true }],
  ["/audit", () => import("./pages/audit.js"), { admin: true }],
  ["/link/:uuid/:token", () => import("./pages/link.js"), { isPublic: true }],
  ["/help", () => import("./pages/help.js"), { isHelp: true }],
  ["/help/:page", () => import("./pages/help.js"), { isHelp: true }],
];

// The navigation: groups of [address, text]; those of an administrator are hidden from others.
export const NAVIGATION = [
  { title: "Files", links: [
    ["/", "Overview"],
    ["/projects", "Projects"],
    ["/images", "Images"],
    ["/backups", "Backups"],
    ["/buckets", "Buckets"],
    ["/uploads", "Uploads"],
    ["/trash", "Trash"],
  ] },
  { title: "Sharing", links: [
    ["/shares", "Shares"],
    ["/access", "Access"],
  ] },
  { title: "Cluster", admin: true, links: [
    ["/nodes", "Nodes"],
    ["/coordinators", "Coordinators"],
    ["/jobs", "Jobs"],
    ["/users", "Users"],
    ["/audit", "Audit log"],
  ] },
];
