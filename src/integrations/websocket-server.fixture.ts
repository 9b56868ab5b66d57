/** For tests: a WebSocket server by hand, whose sessions answer text with text, and a /schema. */
import { createHash } from "node:crypto";
import { createServer } from "node:http";
import type { Duplex } from "node:stream";
import { listen } from "../base/http.ts";

export interface Connection {
  send(text: string): void;
  /** As the protocol has it. */
  close(): void;
  /** Breaks the connection. */
  destroy(): void;
  /** Bytes as they are. */
  raw(bytes: Uint8Array): void;
}

export type OnMessage = (text: string) => void;

export interface WebSocketServer {
  url: string;
  /** Connections that are open. */
  open(): number;
  close(): Promise<void>;
}

/** @param session called for each connection; its result is called with each message */
export async function webSocketServer(
  schema: string,
  session: (connection: Connection) => OnMessage,
): Promise<WebSocketServer> {
  const sockets = new Set<Duplex>();
  const server = createServer((_, response) => response.end(schema));
  server.on("upgrade", (request, socket: Duplex) => {
    sockets.add(socket);
    socket.on("close", () => sockets.delete(socket)).on("error", () => {});
    const key = `${request.headers["sec-websocket-key"]}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`;
    const accept = createHash("sha1").update(key).digest("base64");
    const head = ["HTTP/1.1 101 Switching Protocols", "upgrade: websocket", "connection: Upgrade"];
    socket.write(`${[...head, `sec-websocket-accept: ${accept}`].join("\r\n")}\r\n\r\n`);
    const onMessage = session({
      send: (text) => socket.write(frame(1, Buffer.from(text))),
      close: () => socket.end(frame(8, Buffer.from([3, 232]))),
      destroy: () => socket.destroy(),
      raw: (bytes) => socket.write(bytes),
    });
    let rest = Buffer.alloc(0);
    socket.on("data", (bytes: Buffer) => {
      rest = Buffer.concat([rest, bytes]);
      for (let read = readFrame(rest); read !== undefined; read = readFrame(rest)) {
        rest = rest.subarray(read.bytes);
        if (read.kind === 8) socket.end(frame(8, read.content));
        else onMessage(read.content.toString());
      }
    });
  });
  const url = await listen(server);
  return {
    url,
    open: () => sockets.size,
    async close() {
      for (const socket of sockets) socket.destroy();
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

function frame(kind: number, content: Buffer): Buffer {
  const length = content.length;
  const head = Buffer.alloc(length < 126 ? 2 : length < 65536 ? 4 : 10);
  head[0] = 0x80 | kind;
  if (length < 126) head[1] = length;
  else if (length < 65536) head.writeUInt16BE(length, 2);
  else head.writeBigUInt64BE(BigInt(length), 2);
  if (length >= 126) head[1] = length < 65536 ? 126 : 127;
  return Buffer.concat([head, content]);
}

/** Of a client, so masked; messages of tests are below 64 KiB. */
function readFrame(bytes: Buffer): { kind: number; content: Buffer; bytes: number } | undefined {
  if (bytes.length < 6) return undefined;
  const short = bytes[1]! & 127;
  const start = short < 126 ? 2 : 4;
  const length = short < 126 ? short : bytes.readUInt16BE(2);
  const end = start + 4 + length;
  if (bytes.length < end) return undefined;
  const mask = bytes.subarray(start, start + 4);
  const content = Buffer.from(bytes.subarray(start + 4, end).map((byte, index) => byte ^ mask[index % 4]!));
  return { kind: bytes[0]! & 15, content, bytes: end };
}
