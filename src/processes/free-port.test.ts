import { once } from "node:events";
import { createServer } from "node:net";
import { expect, test } from "vitest";
import { freePort } from "./free-port.ts";

test("a program can listen on the port, which no outgoing connection is given", async () => {
  const port = await freePort();
  expect(port).toBeGreaterThan(1023);
  expect(port).toBeLessThan(32_768);
  const server = createServer().listen(port, "127.0.0.1");
  await once(server, "listening");
  server.close();
});
