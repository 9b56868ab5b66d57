/** The Tinker client in front of Hone's own service, without a port, over an engine with or without Python. */
import type { Engine } from "../../backends/engine.ts";
import type { TinkerEngineOptions } from "../../backends/tinker/engine.ts";
import { openTinkerEngine } from "../../backends/tinker/engine.ts";
import { deriveSeed, uniforms } from "../../base/values.ts";
import { tabularEngine } from "../../testing/tabular-engine.ts";
import { openService, type ServerOptions } from "./server.ts";

export interface OpenedTinker {
  engine: Engine;
  /** `METHOD path` of each request so far. */
  requests: string[];
  close(): Promise<void>;
}

/** Knows letters; every one has likelier and less likely ones after it. */
const letters = () =>
  tabularEngine({
    alphabet: "abcdefghijklmnopqrstuvwxyz",
    logit: (next, previous) => uniforms(deriveSeed(next, previous))() * 4 - 2,
  });

interface Options {
  stateFolder: string;
  inner?: Engine;
  /** The service describes neither itself nor its models, so the client uses the documented protocol alone. */
  plain?: boolean;
  /** What the service states in place of its capabilities; null: nothing. */
  states?: object | null;
  client?: Partial<TinkerEngineOptions>;
  server?: Partial<ServerOptions>;
  /** May answer a request in place of the service. */
  intercept?: (path: string, init: RequestInit) => Response | undefined;
}

export async function openTinker(options: Options): Promise<OpenedTinker> {
  const { stateFolder, inner = letters(), plain = false, states, intercept = () => undefined } = options;
  const running = await openService({ engines: [{ names: ["tiny"], engine: inner }], stateFolder, ...options.server });
  const requests: string[] = [];

  async function handshake(response: Response): Promise<Response> {
    const answer = (await response.json()) as { supported_models: Record<string, unknown>[]; hone: unknown };
    const { supported_models: models, hone } = answer;
    if (plain) return Response.json({ supported_models: models.map(({ hone: _, ...rest }) => rest) });
    return Response.json({ supported_models: models, hone: states === undefined ? hone : (states ?? undefined) });
  }

  const engine = await openTinkerEngine({
    ...{ model: "tiny", baseUrl: "http://in-process", apiKey: "tml-local", retryMs: 1 },
    async fetch(url, init) {
      const { pathname } = new URL(url);
      const path = pathname.replace("/api/v1/", "");
      requests.push(`${init.method} ${path}`);
      const response = intercept(path, init) ?? (await running.app.request(url, init));
      return path === "get_server_capabilities" ? handshake(response) : response;
    },
    tokenizerFolder: async () => "",
    facts: inner.model,
    ...options.client,
  });
  return {
    engine,
    requests,
    async close() {
      await engine.close();
      await running.close();
    },
  };
}
