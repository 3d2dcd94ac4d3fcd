// Uses an endpoint by the TypeScript SDK's client, which the suite brings along: `sdk_client.mjs URL` prints JSON.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const client = new Client({ name: "keeper", version: "1" });
await client.connect(new StreamableHTTPClientTransport(new URL(process.argv[2])));
const { tools } = await client.listTools();
const said = await client.callTool({ name: "test_simple_text", arguments: {} });
console.log(JSON.stringify({ names: tools.map((tool) => tool.name), said: said.content[0].text }));
await client.close();
process.exit(0);
