/** An instant inference server with vLLM's shapes: 5 prompt and 3 sampled tokens, whatever is asked. `node ... PORT` */
import { createServer } from "node:http";

const ids = [9906, 1917, 151645];
const base = { id: "fake", created: 1, model: "policy", prompt_token_ids: [1, 2, 3, 4, 5] };
const usage = { prompt_tokens: 5, completion_tokens: 3, total_tokens: 8 };
const chat = JSON.stringify({
  ...base,
  object: "chat.completion",
  choices: [
    {
      ...{ index: 0, finish_reason: "stop", stop_reason: null, token_ids: ids },
      message: { role: "assistant", content: "Hello world", tool_calls: [], reasoning: null },
      logprobs: { content: ids.map((id) => ({ token: `t${id}`, logprob: -0.5, bytes: null, top_logprobs: [] })) },
    },
  ],
  usage,
});
const completion = JSON.stringify({
  ...base,
  object: "text_completion",
  choices: [
    {
      ...{ index: 0, text: "Hello world", finish_reason: "stop", stop_reason: null, token_ids: ids },
      logprobs: {
        ...{ text_offset: [0, 5, 11], token_logprobs: ids.map(() => -0.5), tokens: ids.map((id) => `t${id}`) },
        top_logprobs: ids.map((id) => ({ [`t${id}`]: -0.5 })),
      },
    },
  ],
  usage,
});

const server = createServer((request, response) => {
  request.resume().on("end", () => {
    const text = request.url === "/v1/chat/completions" ? chat : request.url === "/v1/completions" ? completion : "{}";
    response.writeHead(200, { "content-type": "application/json", "content-length": Buffer.byteLength(text) });
    response.end(text);
  });
});
server.keepAliveTimeout = 120_000;
server.listen({ host: "127.0.0.1", port: Number(process.argv[2]), backlog: 4096 }, () => console.log("ready"));
