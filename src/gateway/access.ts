/** Who may call the gateway: on loopback every process of this machine, elsewhere only those that hold a key. */
import { createHash, createHmac, timingSafeEqual } from "node:crypto";
import { UserError } from "../errors.ts";
import type { CallSource } from "./address.ts";
import { GatewayError } from "./gateway-error.ts";
import type { HttpExchange } from "./http-exchange.ts";

/** The admin token of the reference's documents: everybody knows it. */
export const defaultAdminToken = "my-shared-secret";

export interface Access {
  /** The key with which a session's agent calls. */
  keyOf(source: Pick<CallSource, "session" | "attempt">): string;
  /** @throws GatewayError when keys are needed and the client has none that opens this session */
  checkCall(exchange: HttpExchange, source: CallSource): void;
  /** @throws GatewayError when the client does not hold the admin token */
  checkAdmin(exchange: HttpExchange): void;
}

export const isLoopback = (host: string): boolean => /^(127(\.\d{1,3}){3}|::1|localhost)$/.test(host);

/** @throws UserError when the gateway would be open to others with a token that everybody knows */
export function createAccess(host: string, adminToken: string): Access {
  const open = isLoopback(host);
  if (!open && (adminToken === defaultAdminToken || adminToken === "")) {
    throw new UserError(`the gateway would listen on ${host} with the admin token that everybody knows`, {
      hint: "set rllm.sdk.proxy.admin_token to a secret of your own, or listen on 127.0.0.1",
    });
  }
  const keyOf: Access["keyOf"] = ({ session, attempt }) =>
    `hone-${createHmac("sha256", adminToken).update(`${attempt} ${session}`).digest("base64url").slice(0, 32)}`;

  return {
    keyOf,
    checkCall(exchange, source) {
      if (open) return;
      const key = keyFrom(exchange);
      if (key !== undefined && (equal(key, keyOf(source)) || equal(key, adminToken))) return;
      throw new GatewayError("authentication", "this session needs the API key that it was given");
    },
    checkAdmin(exchange) {
      const key = keyFrom(exchange);
      if (key !== undefined && equal(key, adminToken)) return;
      throw new GatewayError("authentication", "this needs the admin token as bearer token");
    },
  };
}

function keyFrom(exchange: HttpExchange): string | undefined {
  const bearer = /^Bearer\s+(.+)$/i.exec(exchange.header("authorization") ?? "")?.[1];
  return bearer ?? exchange.header("x-api-key");
}

/** Takes the same time wherever the two differ, and whatever their lengths. */
function equal(left: string, right: string): boolean {
  const digest = (text: string) => createHash("sha256").update(text).digest();
  return timingSafeEqual(digest(left), digest(right));
}
