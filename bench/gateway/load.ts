/**
 * The client: a number of connections, each of which sends the next request as soon as it is answered. It uses plain
 * sockets with prepared text, and reads only the status and length of an answer, so that the server is measured, not
 * the client. `node ... '{"port":1,"paths":["/a"],"connections":1,"seconds":4}'`
 */
import { connect } from "node:net";

export interface Load {
  port: number;
  /** Each connection requests these in turn. */
  paths: string[];
  connections: number;
  seconds: number;
  warmUpSeconds: number;
}

export interface Measured {
  requestsPerSecond: number;
  /** Milliseconds. */
  p50: number;
  p99: number;
  errors: number;
  /** All answers, including the warm-up. */
  answers: number;
}

const load = JSON.parse(process.argv[2] ?? "") as Load;
/** Eight calls share a prompt, like a group of rollouts. */
const [beforeTask, afterTask] = JSON.stringify({
  model: "policy",
  messages: [
    { role: "system", content: "You are a careful assistant who answers in one short sentence." },
    { role: "user", content: "Train TASK leaves at nine and arrives at a quarter past eleven. How long did it take?" },
  ],
  max_tokens: 64,
  temperature: 1,
}).split("TASK") as [string, string];
let asked = 0;
const latencies: number[] = [];
const begin = performance.now() + load.warmUpSeconds * 1000;
const end = begin + load.seconds * 1000;
let errors = 0;
let open = load.connections;

for (let index = 0; index < load.connections; index++) {
  const path = load.paths[index % load.paths.length]!;
  const head =
    `POST ${path} HTTP/1.1\r\nhost: 127.0.0.1:${load.port}\r\ncontent-type: application/json\r\n` +
    `authorization: Bearer sk-bench\r\ncontent-length: `;
  const socket = connect({ host: "127.0.0.1", port: load.port, noDelay: true });
  let sent = 0;
  let received = "";
  const send = () => {
    sent = performance.now();
    if (sent >= end) return socket.end();
    const task = String(Math.floor(asked++ / 8));
    const length = beforeTask.length + task.length + afterTask.length;
    socket.write(`${head}${length}\r\n\r\n${beforeTask}${task}${afterTask}`, "latin1");
  };
  socket.setEncoding("latin1");
  socket.on("connect", send);
  socket.on("data", (piece: string) => {
    received += piece;
    const headers = received.indexOf("\r\n\r\n");
    if (headers < 0) return;
    const length = /\r\ncontent-length: *(\d+)/i.exec(received);
    if (length === null || length.index > headers) {
      throw new Error(`an answer without content-length: ${received.slice(0, 300)}`);
    }
    if (received.length < headers + 4 + Number(length[1])) return;
    const now = performance.now();
    if (!received.startsWith("HTTP/1.1 200")) {
      if (errors++ === 0) console.error(received.slice(0, 400));
    } else if (now >= begin && now <= end) latencies.push(now - sent);
    received = "";
    send();
  });
  socket.on("error", () => errors++);
  socket.on("close", () => {
    open--;
    if (open === 0) report();
  });
}

function report(): void {
  latencies.sort((left, right) => left - right);
  const at = (share: number) => latencies[Math.floor(share * (latencies.length - 1))] ?? Number.NaN;
  const measured: Measured = {
    requestsPerSecond: latencies.length / load.seconds,
    ...{ p50: at(0.5), p99: at(0.99), errors, answers: asked },
  };
  console.log(JSON.stringify(measured));
}
