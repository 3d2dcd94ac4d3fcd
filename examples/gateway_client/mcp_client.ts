import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const headers = { Authorization: `Bearer ${process.env.KEY}` };
const client = new Client({ name: "keeper", version: "1" }, { versionNegotiation: { mode: "auto" } });
const url = new URL(`${process.env.URL}/mcp`);
await client.connect(new StreamableHTTPClientTransport(url, { requestInit: { headers } }));
const { tools } = await client.listTools();
console.log(tools.length, "tools");
const tool = { name: "owls.echo", arguments: { text: "hello" } };
const result = await client.callTool(tool, { timeout: 120_000 });
console.log(result.structuredContent);
await client.close();
