// A certified provider, oidc-provider, on a loopback port: node provider.mjs CONFIG. CONFIG is a JSON file:
// { modules, port, keys, redirects, loopback, secret, people, issued }. `people` is the path of a file that is read for each
// request: { NAME: { groups, email, gone } }; `issued` that of a file to which every answer of the token endpoint is
// appended. Every password is right; its development pages ask for name and consent.
import { createRequire } from "node:module";
import { appendFileSync, readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const config = JSON.parse(readFileSync(process.argv[2], "utf8"));
const { Provider } = await import(pathToFileURL(createRequire(config.modules + "/").resolve("oidc-provider")));
const issuer = `http://127.0.0.1:${config.port}`;
const grants = ["authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"];

function person(name) {
  const known = JSON.parse(readFileSync(config.people, "utf8"))[name];
  if (!known || known.gone) return undefined;
  return { accountId: name, claims: () => ({ sub: name, preferred_username: name, email: known.email, groups: known.groups }) };
}

const provider = new Provider(issuer, {
  clients: [
    { client_id: "filestore", client_secret: config.secret, grant_types: grants, redirect_uris: config.redirects },
    { client_id: "filestore-command", token_endpoint_auth_method: "none", application_type: "native", grant_types: grants,
      redirect_uris: config.loopback.map((name) => `http://127.0.0.1/sign-in/${name}`) },
    { client_id: "another", client_secret: "s3cret-of-another", grant_types: grants, redirect_uris: config.redirects },
  ],
  jwks: { keys: config.keys },
  findAccount: (_context, name) => person(name),
  claims: { openid: ["sub"], profile: ["preferred_username", "groups"], email: ["email"] },
  features: { deviceFlow: { enabled: true }, revocation: { enabled: true }, devInteractions: { enabled: true } },
  pkce: { required: () => true },
  issueRefreshToken: async (_context, client) => client.grantTypeAllowed("refresh_token"),
  rotateRefreshToken: true,
  cookies: { keys: ["a key of a test"] },
  ttl: { Session: 3600, Grant: 3600, Interaction: 600, AccessToken: 600, IdToken: 600, RefreshToken: 3600, DeviceCode: 600 },
});
provider.on("grant.success", ({ body }) => appendFileSync(config.issued, `${JSON.stringify(body)}\n`));
provider.on("server_error", (_context, error) => console.error(error));
provider.listen(config.port, "127.0.0.1", () => console.log("ready"));
