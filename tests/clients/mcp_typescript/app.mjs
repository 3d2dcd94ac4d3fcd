// An app as a client of MCP shows one: `app.mjs ERA URL KEY TOOL` reads the resource of a tool, and runs an app at it, which
// asks its server through that client as an app in a page does. Prints JSON.
import { App } from "@modelcontextprotocol/ext-apps";
import { AppBridge } from "@modelcontextprotocol/ext-apps/app-bridge";
import { Client, InMemoryTransport, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const [era, url, key, shown, asked] = process.argv.slice(2);
const UI = "io.modelcontextprotocol/ui";
const capabilities = { extensions: { [UI]: { mimeTypes: ["text/html;profile=mcp-app"] } } };
const options = era === "modern" ? { capabilities, versionNegotiation: { mode: "auto" } } : { capabilities };
const client = new Client({ name: "keeper", version: "1" }, options);
await client.connect(
  new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers: { Authorization: `Bearer ${key}` } } }),
);

const { tools } = await client.listTools();
const tool = tools.find((each) => each.name === shown);
const uri = tool._meta.ui.resourceUri;
const { resources } = await client.listResources();
const { contents } = await client.readResource({ uri });

const app = new App({ name: "nest", version: "1" }, {}, { autoResize: false });
const host = { serverTools: {}, serverResources: {} };
const bridge = new AppBridge(client, { name: "keeper", version: "1" }, host);
const [ours, its] = InMemoryTransport.createLinkedPair();
const ready = new Promise((resolve) => bridge.addEventListener("initialized", resolve));
await bridge.connect(ours);
await app.connect(its);
await ready;

const found = {
  revision: client.getNegotiatedProtocolVersion(),
  declared: client.getServerCapabilities().extensions?.[UI],
  tools: tools.filter((each) => each._meta?.ui),
  resources,
  contents,
  called: await app.callServerTool(JSON.parse(asked)),
  read: (await app.readServerResource({ uri })).contents,
};
await client.close();
process.stdout.write(`${JSON.stringify(found)}\n`, () => process.exit(0));
