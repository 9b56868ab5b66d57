/** The key of each request: the API key, or a short-lived token for which the hosted service exchanges it. */
import { z } from "zod";
import { sdkVersion } from "../../tinker-protocol/schema.ts";
import type { Body, Requests } from "./requests.ts";

const tokenAnswer = z.looseObject({ jwt: z.string() });
/** A token is renewed when less than this is left. */
const tokenMarginMs = 60_000;

interface Token {
  jwt: string;
  expires: number;
}

/** Returns a function that sends a request with the current key, and once more when its token is refused. */
export function createCredentials({ settle, readJson }: Requests, apiKey: string) {
  let exchanges: Promise<boolean> | undefined;
  let token: Promise<Token> | undefined;

  async function post(path: string, body: Body): Promise<Record<string, unknown>> {
    return readJson(path, await settle({ method: "POST", path, body, key: apiKey }));
  }

  async function exchange(): Promise<Token> {
    try {
      const { jwt } = tokenAnswer.parse(await post("auth/token", {}));
      const claims = JSON.parse(Buffer.from(jwt.split(".")[1] ?? "", "base64url").toString()) as { exp?: number };
      return { jwt, expires: (claims.exp ?? 0) * 1000 };
    } catch (error) {
      // The next request tries again.
      token = undefined;
      throw error;
    }
  }

  async function asksForTokens(): Promise<boolean> {
    try {
      return (await post("client/config", { sdk_version: sdkVersion })).pjwt_auth_enabled === true;
    } catch (error) {
      exchanges = undefined;
      throw error;
    }
  }

  async function key(): Promise<string> {
    exchanges ??= asksForTokens();
    if (!(await exchanges)) return apiKey;
    token ??= exchange();
    const current = token;
    const { jwt, expires } = await current;
    if (expires - Date.now() >= tokenMarginMs) return jwt;
    if (token === current) token = exchange();
    return (await (token ?? exchange())).jwt;
  }

  return async (attempt: (key: string) => Promise<Response>): Promise<Response> => {
    const used = await key();
    const current = token;
    const response = await attempt(used);
    if (response.status !== 401 || current === undefined) return response;
    // Several requests may be refused at the same time.
    if (token === current) token = exchange();
    return attempt(await key());
  };
}
