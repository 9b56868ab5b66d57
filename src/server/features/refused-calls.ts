/** Calls of the official SDK that this server does not support, each refused with a sentence. Listed in docs/guide/serving.md. */
import { Hono } from "hono";
import type { Feature } from "../feature.ts";
import { HttpError } from "../http-error.ts";

const refused: Readonly<Record<string, string>> = {
  "GET /audit":
    "this server keeps no audit log; its own log has a line for each operation, and GET /metrics the counters",
  "GET /sessions/:session/trace_export":
    "this server exports no session traces; GET /metrics has the time of operations by kind",
  "POST /auth/token": "this server exchanges no keys for tokens: use the API key that it was started with",
  "GET /auth/apikey/me": "this server has no accounts: its API key gives access to everything on it",
  "DELETE /auth/apikey/me":
    "this server has one API key, which is set when it starts: restart it with another --api-key",
  "POST /create_custom_loss":
    "this server runs no custom losses; the SDK runs them on the client, as client/config says",
};

export function refusedCalls(): Feature {
  const api = new Hono();
  for (const [call, why] of Object.entries(refused)) {
    const [method = "", path = ""] = call.split(" ");
    api.on(method, path, () => {
      // Not 501: clients retry every status from 500 for minutes.
      throw new HttpError(400, why);
    });
  }
  return { api };
}
