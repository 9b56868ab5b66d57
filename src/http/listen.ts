/** Starts a server on an address of this machine. */
import type { AddressInfo, ListenOptions, Server } from "node:net";

/** @returns its URL. @throws the system's error if the address is taken or not this machine's */
export async function listen(
  server: Server,
  options: Pick<ListenOptions, "host" | "port" | "backlog"> = {},
): Promise<string> {
  const { host = "127.0.0.1", port = 0 } = options;
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen({ ...options, host, port }, resolve);
  });
  return `http://${host.includes(":") ? `[${host}]` : host}:${(server.address() as AddressInfo).port}`;
}
