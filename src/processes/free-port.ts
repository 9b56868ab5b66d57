import { randomInt } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:net";

/** Below the ports that systems give to outgoing connections, which could take one before it is used. */
const range = { first: 15_000, end: 32_768 };
const attempts = 100;

/**
 * Finds a TCP port of this machine on which nothing listens, for a program that cannot choose one itself.
 *
 * @throws Error when none is found
 */
export async function freePort(): Promise<number> {
  for (let attempt = 0; attempt < attempts; attempt++) {
    const port = randomInt(range.first, range.end);
    const server = createServer().listen(port, "127.0.0.1");
    try {
      await once(server, "listening");
    } catch {
      continue; // Taken.
    }
    await new Promise((resolve) => server.close(resolve));
    return port;
  }
  throw new Error(`none of ${attempts} ports from ${range.first} to ${range.end - 1} is free`);
}
