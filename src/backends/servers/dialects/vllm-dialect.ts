/** Chooses between vLLM's two routes for token ids. */
import { fetch } from "undici";
import { reasonOf } from "../../../http/retries.ts";
import { type Server, ServerFailed } from "../server.ts";
import type { Dialect } from "./dialect.ts";
import { vllmCompletions } from "./vllm-completions.ts";
import { vllmGenerate } from "./vllm-generate.ts";

/** @throws ServerFailed when it does not answer */
export async function vllmDialect(server: Server): Promise<Dialect> {
  server.generates ??= hasGenerate(server);
  try {
    return (await server.generates) ? vllmGenerate : vllmCompletions;
  } catch (error) {
    server.generates = undefined;
    throw error;
  }
}

/** vLLM has the route only with --enable-scale-out. It accepts POST, so such a server answers GET with 405 instead of 404. */
async function hasGenerate({ url, headers, pool }: Server): Promise<boolean> {
  try {
    const { status } = await fetch(url + vllmGenerate.path, {
      headers,
      dispatcher: pool,
      signal: AbortSignal.timeout(60_000),
    });
    return status === 405;
  } catch (error) {
    throw new ServerFailed(`the inference server at ${url} does not answer: ${reasonOf(error)}`, { cause: error });
  }
}
