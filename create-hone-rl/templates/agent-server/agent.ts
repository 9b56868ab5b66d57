/** An agent that runs as its own server, in any language and with any framework. `npm run agent` starts it alone. */
import { createServer, type Server } from "node:http";

interface Job {
  task: { left: number; right: number };
  /** The model's address for OpenAI's clients, and its key. */
  base_url: string;
  api_key: string;
}

const question = (left: number, right: number) => `Which number is larger, ${left} or ${right}?`;

async function solve({ task: { left, right }, base_url, api_key }: Job): Promise<{ answer: string }> {
  const response = await fetch(`${base_url}/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${api_key}` },
    body: JSON.stringify({
      model: "policy",
      messages: [
        { role: "user", content: question(13, 75) },
        { role: "assistant", content: "75" },
        { role: "user", content: question(91, 82) },
        { role: "assistant", content: "91" },
        { role: "user", content: question(left, right) },
      ],
    }),
  });
  if (!response.ok) throw new Error(`the model answered ${response.status}: ${await response.text()}`);
  const { choices } = (await response.json()) as { choices: { message: { content: string } }[] };
  return { answer: choices[0]?.message.content ?? "" };
}

export async function startAgent(port: number): Promise<Server> {
  const server = createServer(async (request, response) => {
    let text = "";
    for await (const piece of request) text += piece;
    try {
      const answer = JSON.stringify(await solve(JSON.parse(text) as Job));
      response.writeHead(200, { "content-type": "application/json" }).end(answer);
    } catch (error) {
      response.writeHead(500).end(String(error));
    }
  });
  await new Promise<void>((ready) => server.listen(port, "127.0.0.1", ready));
  return server;
}
