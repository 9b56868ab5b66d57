/** An instant inference server with vLLM's shapes: always 5 prompt and 3 sampled tokens. `node ... PORT` */
import { createServer } from "node:net";

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

/** Answers are prepared bytes, and only a request's path and length are read, because both gateways wait for this. */
function prepare(text: string): Buffer {
  const head = `HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(text)}\r\n\r\n`;
  return Buffer.from(head + text);
}
const [chatAnswer, completionAnswer, otherAnswer] = [chat, completion, "{}"].map(prepare);

const server = createServer({ noDelay: true }, (socket) => {
  let received = "";
  socket.setEncoding("latin1");
  socket.on("data", (piece: string) => {
    received += piece;
    for (let end = received.indexOf("\r\n\r\n"); end >= 0; end = received.indexOf("\r\n\r\n")) {
      const head = received.slice(0, end);
      if (/\r\ntransfer-encoding:/i.test(head)) throw new Error(`a request without content-length: ${head}`);
      const whole = end + 4 + Number(/\r\ncontent-length: *(\d+)/i.exec(head)?.[1] ?? 0);
      if (received.length < whole) return;
      received = received.slice(whole);
      const path = head.split(" ", 2)[1];
      const answer =
        path === "/v1/chat/completions" ? chatAnswer : path === "/v1/completions" ? completionAnswer : otherAnswer;
      socket.write(answer!);
    }
  });
  // A gateway that is stopped does not close its connections.
  socket.on("error", () => {});
});
server.listen({ host: "127.0.0.1", port: Number(process.argv[2]), backlog: 4096 }, () => console.log("ready"));
