/** The gateway of a run: opened with the settings of `rllm.gateway` and `rllm.sdk`. */
import { once } from "node:events";
import { type AddressInfo, createServer } from "node:net";
import { basename } from "node:path";
import { createClosers } from "../base/closers.ts";
import { UserError } from "../base/errors.ts";
import type { NoVision, Vision } from "../chat/images.ts";
import type { Chat } from "../chat/types.ts";
import type { Config } from "../config/schema.ts";
import { maskedSecret } from "../config/secrets.ts";
import { addressRules, type Fetching } from "../images/load-image.ts";
import type { RunFolder } from "../tracking/run-folder.ts";
import { type GatewayOptions, openGateway } from "./gateway.ts";
import { createAccess, openTunnel, tunnelPrograms } from "./http.ts";
import type { Gateway, TraceStore } from "./types.ts";

export interface OpenRunGatewayOptions {
  config: Config;
  folder: RunFolder | undefined;
  chat: Chat;
  vision: Vision | NoVision;
  /** The name that the model is listed by. */
  model: string;
  warn: (text: string) => void;
  counts?: Record<string, number>;
  /** For `hone gateway`, which does not train. */
  alone?: Pick<GatewayOptions, "openUnknown" | "callTimeoutSeconds" | "filterSpans">;
}

/** The document's default; another port is the user's choice. */
const defaultPort = 4000;

/** @throws UserError for settings that the gateway would refuse, before anything is loaded */
export function checkRunGateway(config: Config): void {
  const { gateway, sdk } = config.rllm;
  imageFetching(config, () => {});
  const { host, admin_token: token } = sdk.proxy;
  if (token === maskedSecret) {
    // biome-ignore lint/suspicious/noTemplateCurlyInString: the configuration's references are spelled like that
    const reference = "'${oc.env:HONE_ADMIN_TOKEN}'";
    throw new UserError("rllm.sdk.proxy.admin_token was not saved with the run, and is needed to continue it", {
      hint: `Add it to the command: rllm.sdk.proxy.admin_token=..., preferably as ${reference}, because this reference is saved with the run.`,
    });
  }
  createAccess(gateway.host ?? host, token, gateway.tunnel ?? undefined);
}

/**
 * Tries the gateway's port before a model is loaded.
 * @throws UserError naming the setting, if it cannot listen there
 */
export async function requireGatewayPort({ rllm }: Config): Promise<void> {
  const { host, port, setting } = addressIn(rllm);
  if (port !== 0) await tryPort(host, port, setting);
}

function addressIn({ gateway, sdk: { proxy } }: Config["rllm"]): { host: string; port: number; setting: string } {
  const host = gateway.host ?? proxy.host;
  if (gateway.port !== null) return { host, port: gateway.port, setting: "rllm.gateway.port" };
  // Agents that Hone starts receive the port; other agents must know it.
  const fixedPort = proxy.mode === "external" || proxy.port !== defaultPort;
  return { host, port: fixedPort ? proxy.port : 0, setting: "rllm.sdk.proxy.port" };
}

export async function openRunGateway(options: OpenRunGatewayOptions): Promise<Gateway> {
  const { config, chat, vision, model, warn, counts = {}, alone = {} } = options;
  const { gateway, sdk } = config.rllm;
  const { proxy } = sdk;
  const closers = createClosers();
  const store = await openStore(options);
  if (store) closers.add(() => store.close());
  try {
    const { host, setting, ...address } = addressIn(config.rllm);
    let { port } = address;
    let publicUrl = gateway.tunnel ?? undefined;
    if (publicUrl !== undefined && Object.hasOwn(tunnelPrograms, publicUrl)) {
      // The gateway must know its public address when it opens.
      if (port === 0) port = await tryPort(host, 0, setting);
      const tunnel = await openTunnel(publicUrl, port, warn);
      closers.add(tunnel.close);
      warn(`${publicUrl} opened a tunnel to the gateway: ${tunnel.url}`);
      publicUrl = tunnel.url;
    }
    const opened = await openGateway({
      chat,
      vision,
      model,
      log: warn,
      counts,
      ...alone,
      host,
      port,
      adminToken: proxy.admin_token,
      unenforceable: gateway.unenforceable,
      publicUrl,
      store,
    });
    closers.add(opened.close);
    return { ...opened, close: closers.close };
  } catch (error) {
    return await closers.abandon(error);
  }
}

/** @returns the port, for 0 a free one */
async function tryPort(host: string, wanted: number, setting: string): Promise<number> {
  const server = createServer().listen(wanted, host);
  await once(server, "listening").catch((error: Error) => {
    throw new UserError(`the gateway cannot listen on ${host}:${wanted}: ${error.message}`, {
      hint: `choose another port with ${setting}; 0 takes any free one`,
      cause: error,
    });
  });
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, "close");
  return port;
}

/** Loads SQLite only if traces are stored. */
async function openStore({ config, folder, warn }: OpenRunGatewayOptions): Promise<TraceStore | undefined> {
  const { gateway, sdk, trainer } = config.rllm;
  if (gateway.store !== "sqlite") return undefined;
  const { openTraceStore } = await import("./traces/store.ts");
  return openTraceStore({
    path: gateway.db_path ?? sdk.store.path,
    project: folder === undefined ? trainer.project_name : `${trainer.project_name}/${basename(folder.path)}`,
    retentionDays: sdk.store.retention_days,
    onProblem: warn,
  });
}

/** From which addresses a run fetches images: those of its data, and those that clients of its gateway name. */
export const imageFetching = ({ data, rllm }: Config, log: (line: string) => void): Fetching => ({
  own: addressRules(["*", ...data.image_hosts]),
  clients: addressRules(rllm.gateway.image_hosts),
  log,
});
