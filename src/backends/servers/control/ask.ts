/** Requests to the control routes of an inference server. */
import { fetch, type Response } from "undici";
import type { z } from "zod";
import { RunError } from "../../../errors.ts";
import { reasonOf } from "../../../http/retries.ts";
import { type Server, type ServerAddress, ServerFailed, samplerSettings } from "../server.ts";

export interface Ask {
  url: string;
  /**
   * Sends a GET request, or with a body a POST request.
   * @returns the answer's text
   * @throws RunError when the server does not answer, or answers with an error
   */
  ask(path: string, body?: object): Promise<string>;
  /** @throws RunError also when the answer does not match the schema */
  read<T>(schema: z.ZodType<T>, path: string, body?: object): Promise<T>;
}

export type AskedServer = Pick<ServerAddress, "url" | "headers"> & Partial<Pick<Server, "pool" | "settings">>;

/** Loading the weights of a large model takes minutes. */
const limitMs = 900_000;

/** @param kind the name of the server in messages */
export function openAsk(server: AskedServer, kind: string): Ask {
  const { url, headers, settings = samplerSettings } = server;

  async function ask(path: string, body?: object): Promise<string> {
    let response: Response;
    let text: string;
    try {
      response = await fetch(url + path, {
        method: body === undefined ? "GET" : "POST",
        headers,
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
        ...(server.pool === undefined ? {} : { dispatcher: server.pool }),
        signal: AbortSignal.timeout(limitMs),
      });
      text = await response.text();
    } catch (error) {
      throw new ServerFailed(`the inference server at ${url} does not answer: ${reasonOf(error)}`, {
        code: "server_unreachable",
        hint: `start it, or correct ${settings.url}`,
        cause: error,
      });
    }
    if (response.ok) return text;
    throw new RunError(`the inference server at ${url} answered ${response.status} to ${path}: ${text.slice(0, 500)}`);
  }

  return {
    url,
    ask,
    async read(schema, path, body) {
      const text = await ask(path, body);
      try {
        return schema.parse(JSON.parse(text));
      } catch (error) {
        throw new RunError(`the inference server at ${url} answered ${path} with ${text.slice(0, 200)}`, {
          hint: `${settings.url} must be the address of a ${kind} server`,
          cause: error,
        });
      }
    },
  };
}
