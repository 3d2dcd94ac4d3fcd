// Runs one of the TypeScript SDK's clients against a gateway: `run.mjs CLIENT URL KEY ACT` prints JSON.
//
// Acts: `read` lists the tools, and calls one, and another one that fails; `call` lists them, prints what it hears of progress, and calls a
// tool that lasts two seconds; `cancel` takes a call back at a line on standard input, and calls on; `twice` calls, waits for a line, and
// calls again in the same session; `tasks` follows a task to its end, and takes another one back at a line.

import { createInterface } from "node:readline/promises";

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { createTaskSessionFromClient, resultFromTaskOutcome } from "@modelcontextprotocol/ext-tasks/client";
import { Client as Client1 } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport as Transport1 } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [name, url, key, act] = process.argv.slice(2);
const who = { name: "keeper", version: "1" };
const at = [new URL(url), { requestInit: { headers: { Authorization: `Bearer ${key}` } } }];
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

async function told(line) {
  console.log(line);
  await lines.next();
}

const make = {
  sdk: () => [new Client1(who), new Transport1(...at)],
  client: () => [new Client(who), new StreamableHTTPClientTransport(...at)],
  modern: () => [new Client(who, { versionNegotiation: { mode: "auto" } }), new StreamableHTTPClientTransport(...at)],
};
const [client, transport] = make[name]();
await client.connect(transport);

function call(tool, args, options = {}) {
  const asked = { name: tool, arguments: args };
  return name === "sdk" ? client.callTool(asked, undefined, options) : client.callTool(asked, options);
}

const text = (result) => result.content.map((part) => part.text).join(" ");
// The package of tasks frames its requests, and leaves it to its user to send them: this is one POST for each.
async function send(request, { signal } = {}) {
  const headers = {
    ...at[1].requestInit.headers,
    Accept: "application/json, text/event-stream",
    "Content-Type": "application/json",
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": request.method,
    "Mcp-Name": request.params.taskId ?? request.params.name,
  };
  const body = JSON.stringify({ jsonrpc: "2.0", id: crypto.randomUUID(), ...request });
  const answer = await fetch(url, { method: "POST", headers, body, signal });
  const { result, error } = await answer.json();
  return error === undefined ? { kind: "result", result } : { kind: "error", error };
}

const acts = {
  async read() {
    const { tools } = await client.listTools();
    const results = [await call("owls.echo", { text: "hoo" }), await call("owls.garble", {})];
    return { names: tools.map((tool) => tool.name), said: results.map(text), failed: results.map((one) => !!one.isError) };
  },
  async call() {
    const { tools } = await client.listTools();
    const talked = await call("owls.talk", {}, { onprogress: (step) => console.log(step.message) });
    const nap = await call("owls.nap", { seconds: 2 });
    return { names: tools.map((tool) => tool.name), said: [talked, nap].map(text) };
  },
  async cancel() {
    const taking = new AbortController();
    const nap = call("owls.nap", { seconds: 60 }, { signal: taking.signal });
    const ended = nap.then(() => "done", (error) => String(error));
    await told("called");
    taking.abort("changed my mind");
    const how = await ended;
    return { how, said: [text(await call("owls.echo", { text: "hoo" }))] };
  },
  async twice() {
    const said = [text(await call("owls.echo", { text: "hoo" }))];
    await told("called");
    said.push(text(await call("owls.echo", { text: "hoo again" })));
    return { said };
  },
  async each() {
    const results = [];
    for (const [tool, args] of JSON.parse(process.argv[6])) {
      results.push(await call(tool, args));
    }
    return { said: results.map(({ content, structuredContent }) => ({ content, structuredContent })) };
  },
  async tasks() {
    const v2RequestFraming = { protocolVersion: "2026-07-28", clientInfo: who, clientCapabilities: {} };
    const session = createTaskSessionFromClient(client, { endpointId: "fleet", rawDispatch: send, v2RequestFraming });
    const first = await session.callTool("owls.nap_once", { seconds: 2 });
    const said = [text(resultFromTaskOutcome((await first.settle()).outcome))];
    const second = await session.callTool("owls.nap_once", { seconds: 60 });
    await told("called");
    await second.cancel();
    const { outcome } = await second.settle();
    await session.close();
    return { said, how: outcome.status };
  },
};
const found = await acts[act]();
found.revision = name === "modern" ? client.getNegotiatedProtocolVersion() : transport.protocolVersion;
console.log(JSON.stringify(found));
await client.close();
process.exit(0);
