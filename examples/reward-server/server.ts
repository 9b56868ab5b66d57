/** A reward server for `remoteReward` and LightRFT's --remote_rm_url. It grades how close a reply is to the requested length. */
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";

interface Request {
  /** Prompt and reply with special tokens. */
  queries: string[];
  prompts: string[];
  references?: string[];
}

/** @param reference the requested number of words, as text */
function grade(query: string, prompt: string, reference: string): number {
  // The reply follows the first "assistant" after the prompt; it may contain others, with which it would hide words.
  const header = query.indexOf("assistant", query.indexOf(prompt) + prompt.length);
  const reply = query.slice(header + "assistant".length);
  const words = reply.match(/\p{L}+/gu)?.length ?? 0;
  return Math.max(0, 1 - Math.abs(words - Number(reference)) / Number(reference));
}

export async function startServer(port = 0): Promise<{ url: string; server: Server }> {
  const server = createServer(async (request, response) => {
    let text = "";
    for await (const piece of request) text += piece;
    const { queries, prompts, references = [] } = JSON.parse(text) as Request;
    const rewards = queries.map((query, index) => grade(query, prompts[index] ?? "", references[index] ?? "1"));
    response.writeHead(200, { "content-type": "application/json" });
    response.end(JSON.stringify({ rewards }));
  });
  await new Promise<void>((resolve) => server.listen(port, "127.0.0.1", resolve));
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, server };
}
