// Calls, follows, polls and cancels through a gateway, with types generated from its OpenAPI document:
//   npx openapi-typescript "$URL/openapi.json" --default-non-nullable=false --output gateway.d.ts

import createClient from "openapi-fetch";
import type { components, paths } from "./gateway.js";

type CallBody = components["schemas"]["CallBody"];
type CallState = components["schemas"]["CallState"];
type Problem = components["schemas"]["ProblemBody"];
type Result = components["schemas"]["ToolResult"];

const url = process.env["URL"] ?? "http://127.0.0.1:8484";
const headers = { Authorization: `Bearer ${process.env["KEY"] ?? ""}` };
const gateway = createClient<paths>({ baseUrl: url, headers });

// The result if there is one within the seconds; else where the call is.
async function call(body: CallBody, key: string, seconds: number): Promise<Result | CallState> {
  const prefer = seconds > 0 ? `wait=${seconds}` : "respond-async";
  const { data, error } = await gateway.POST("/calls", {
    params: { header: { "Idempotency-Key": key, Prefer: prefer } },
    body,
  });
  return data ?? refuse(error);
}

async function begin(body: CallBody, key: string): Promise<string> {
  const begun = await call(body, key, 0);
  if (!("call_id" in begun)) throw new Error(`It has ended: ${JSON.stringify(begun)}`);
  return begun.call_id;
}

async function poll(callId: string): Promise<Result> {
  for (;;) {
    const { data, error } = await gateway.GET("/calls/{call_id}", {
      params: { path: { call_id: callId }, header: { Prefer: "wait=10" } },
    });
    const state = data ?? refuse(error);
    if (state.result) return state.result;
  }
}

// A stream that ends without an end was cut: come again, with the id of the last event.
async function follow(callId: string): Promise<Result> {
  let last: string | undefined;
  for (;;) {
    const { data, error } = await gateway.GET("/calls/{call_id}/events", {
      params: { path: { call_id: callId }, header: last === undefined ? {} : { "Last-Event-ID": last } },
      parseAs: "stream",
    });
    for await (const event of eventsOf(data ?? refuse(error))) {
      last = event.id ?? last;
      if (event.kind === "end") return JSON.parse(event.data) as Result;
    }
  }
}

async function cancel(callId: string): Promise<CallState> {
  const { data, error } = await gateway.DELETE("/calls/{call_id}", { params: { path: { call_id: callId } } });
  return data ?? refuse(error);
}

interface ServerSentEvent {
  kind: string;
  data: string;
  id?: string;
}

async function* eventsOf(stream: ReadableStream<Uint8Array>): AsyncGenerator<ServerSentEvent> {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = blocks.pop() ?? "";
    for (const block of blocks) {
      const fields = new Map(block.split("\n").map((line) => [line.split(": ", 1)[0], line.replace(/^[^:]*: /, "")]));
      const [kind, data, id] = [fields.get("event"), fields.get("data"), fields.get("id")];
      if (kind !== undefined && data !== undefined) yield { kind, data, ...(id === undefined ? {} : { id }) };
    }
  }
}

function refuse(problem: Problem | undefined): never {
  throw new Error(problem === undefined ? "no answer" : `${problem.error_code}: ${problem.detail}`);
}

const intention = crypto.randomUUID();
const nap: CallBody = { tool_name: "owls.nap", arguments: { seconds: 1 } };
const called = await call({ tool_name: "owls.echo", arguments: { text: "hoo" } }, intention, 20);
const again = await call({ tool_name: "owls.echo", arguments: { text: "hoo" } }, intention, 20);
const unknown: CallBody = { tool_name: "owls.ecko", arguments: {} };
const refused = await call(unknown, `${intention}-refused`, 0).catch((error: unknown) => String(error));
const followed = await follow(await begin(nap, `${intention}-followed`));
const polled = await poll(await begin(nap, `${intention}-polled`));
const long: CallBody = { tool_name: "owls.nap", arguments: { seconds: 60 } };
const cancelled = await cancel(await begin(long, `${intention}-cancelled`));
const tools = await gateway.GET("/tools", { params: { query: { module: "owls" } } });

console.log(
  JSON.stringify({
    called,
    again,
    refused,
    followed: followed.result,
    polled: polled.result,
    cancelled: cancelled.result?.error_code,
    tools: tools.data?.count,
  }),
);
