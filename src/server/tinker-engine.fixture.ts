/** The Tinker client in front of Hone's own service, without a port, over an engine with or without Python. */
import type { Engine } from "../backends/engine.ts";
import { openTinkerEngine, type TinkerEngineOptions } from "../backends/tinker/engine.ts";
import { deriveSeed, uniforms } from "../random.ts";
import { tabularEngine } from "../testing/tabular-engine.ts";
import { openService, type ServerOptions } from "./start-server.ts";

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
  /** The service does not say that it is Hone's own, so the client uses the protocol alone. */
  plain?: boolean;
  client?: Partial<TinkerEngineOptions>;
  server?: Partial<ServerOptions>;
  /** May answer a request in place of the service. */
  intercept?: (path: string, init: RequestInit) => Response | undefined;
}

export async function openTinker(options: Options): Promise<OpenedTinker> {
  const { stateFolder, inner = letters(), plain = false, intercept = () => undefined } = options;
  const running = await openService({ engines: [{ names: ["tiny"], engine: inner }], stateFolder, ...options.server });
  const requests: string[] = [];
  const engine = await openTinkerEngine({
    ...{ model: "tiny", baseUrl: "http://in-process", apiKey: "tml-local", retryMs: 1 },
    async fetch(url, init) {
      const { pathname } = new URL(url);
      const path = pathname.replace("/api/v1/", "");
      requests.push(`${init.method} ${path}`);
      const response = intercept(path, init) ?? (await running.app.request(url, init));
      return plain && path === "get_server_capabilities" ? withoutHone(response) : response;
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

async function withoutHone(response: Response): Promise<Response> {
  const { supported_models: models } = (await response.json()) as { supported_models: Record<string, unknown>[] };
  return Response.json({ supported_models: models.map(({ hone: _, ...rest }) => rest) });
}
