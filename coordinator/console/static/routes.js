// Which page an address shows: [pattern, how its module is loaded, { admin: for administrators only, isPublic: without
// signing in }]. The module's default export is a component; it gets { params, query }.
export const ROUTES = [
  ["/", () => import("./pages/overview.js")],
  ["/projects", () => import("./pages/projects.js")],
  ["/images", () => import("./pages/images.js")],
  ["/backups", () => import("./pages/backups.js")],
  ["/buckets", () => import("./pages/buckets.js")],
  ["/buckets/:id", () => import("./pages/bucket.js")],
  ["/file/:id", () => import("./pages/file.js")],
  ["/uploads", () => import("./pages/uploads.js")],
  ["/shares", () => import("./pages/shares.js")],
  ["/access", () => import("./pages/access.js")],
  ["/link/:bucket/:token", () => import("./pages/link.js"), { isPublic: true }],
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
  ] },
  { title: "Sharing", links: [
    ["/shares", "Shares"],
    ["/access", "Access"],
  ] },
];
