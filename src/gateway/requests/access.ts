/** Who may call the gateway: every process of this machine, or, if other machines can reach it, only clients with a key. */
import { createHash, createHmac, timingSafeEqual } from "node:crypto";
import { UserError } from "../../errors.ts";
import { isLoopback, webRefusal } from "../../http/web-guard.ts";
import { tunnelPrograms } from "../tunnel.ts";
import type { CallSource } from "./address.ts";
import { GatewayError } from "./gateway-error.ts";
import type { HttpExchange } from "./http-exchange.ts";

/** The admin token of the reference's documents, which everybody knows. */
export const defaultAdminToken = "my-shared-secret";

export interface Access {
  /** Where other machines reach the gateway; undefined: they cannot, and no key is required. */
  readonly reachableAt: string | undefined;
  /** @throws GatewayError for requests of web pages */
  checkWeb(exchange: HttpExchange): void;
  /** The key for a session's agent. */
  keyOf(source: Pick<CallSource, "session" | "attempt">): string;
  /** @throws GatewayError when a key is required and the client has neither this session's nor the admin token */
  checkCall(exchange: HttpExchange, source: CallSource): void;
  /** @throws GatewayError when the client does not send the admin token */
  checkAdmin(exchange: HttpExchange): void;
}

/**
 * @param publicUrl the address of a tunnel or proxy in front of the gateway, or the program that will open one
 * @throws UserError when other machines could use the gateway with the default admin token
 */
export function createAccess(host: string, adminToken: string, publicUrl?: string): Access {
  const reachableAt = findPublicAddress(host, publicUrl);
  const open = reachableAt === undefined;
  if (!open && (adminToken === defaultAdminToken || adminToken === "")) {
    throw new UserError(`the gateway can be reached at ${reachableAt} and has the default admin token`, {
      hint: "set rllm.sdk.proxy.admin_token to your own secret, or listen on 127.0.0.1 without rllm.gateway.tunnel",
    });
  }
  const keyOf: Access["keyOf"] = ({ session, attempt }) =>
    `hone-${createHmac("sha256", adminToken).update(`${attempt} ${session}`).digest("base64url").slice(0, 32)}`;

  return {
    reachableAt,
    keyOf,
    checkWeb(exchange) {
      const headers = { host: exchange.header("host"), origin: exchange.header("origin") };
      const refusal = webRefusal(headers, { keyRequired: !open });
      if (refusal !== undefined) throw new GatewayError("forbidden", refusal);
    },
    checkCall(exchange, source) {
      if (open) return;
      const key = keyFrom(exchange);
      if (key !== undefined && (equal(key, keyOf(source)) || equal(key, adminToken))) return;
      throw new GatewayError("authentication", "this session requires its API key; send it as a bearer token");
    },
    checkAdmin(exchange) {
      const key = keyFrom(exchange);
      if (key !== undefined && equal(key, adminToken)) return;
      throw new GatewayError("authentication", "this route requires the admin token as a bearer token");
    },
  };
}

function findPublicAddress(host: string, publicUrl: string | undefined): string | undefined {
  if (publicUrl !== undefined && Object.hasOwn(tunnelPrograms, publicUrl)) return `the address that ${publicUrl} opens`;
  if (publicUrl !== undefined) {
    const url = URL.canParse(publicUrl) ? new URL(publicUrl) : undefined;
    if (url === undefined || !/^https?:$/.test(url.protocol)) {
      throw new UserError(
        `rllm.gateway.tunnel=${publicUrl} is not an http:// or https:// address, cloudflared or ngrok`,
      );
    }
    if (!isLoopback(url.hostname)) return publicUrl;
  }
  return isLoopback(host) ? undefined : host;
}

function keyFrom(exchange: HttpExchange): string | undefined {
  const bearer = /^Bearer\s+(.+)$/i.exec(exchange.header("authorization") ?? "")?.[1];
  return bearer ?? exchange.header("x-api-key");
}

/** Takes the same time for all texts. */
function equal(left: string, right: string): boolean {
  const digest = (text: string) => createHash("sha256").update(text).digest();
  return timingSafeEqual(digest(left), digest(right));
}
