/** Starts the viewer's server. */
import { randomBytes } from "node:crypto";
import { createServer } from "node:http";
import { fileURLToPath } from "node:url";
import { getRequestListener } from "@hono/node-server";
import { UserError } from "../../errors.ts";
import { listen } from "../../http/listen.ts";
import { isLoopback } from "../../http/web-guard.ts";
import { createApp } from "./app.ts";
import { createLive } from "./live.ts";
import { openViewer } from "./viewer.ts";

export interface ViewerOptions {
  /** A run folder, or a folder of runs. */
  path: string;
  host: string;
  /** 0 chooses a free port. Default: 7700, or a free port if 7700 is taken. */
  port?: number | undefined;
  /** Default: generated if other machines can connect. */
  token?: string | undefined;
  /** The page's files. Default: those of the package. */
  page?: string;
  /** The folder of the indexes. Default: in the user's cache. */
  cache?: string;
}

export interface RunningViewer {
  /** The address, including the token if one is required. */
  url: string;
  /** Whether there is no run so far, so that the page waits for one. */
  isEmpty: boolean;
  close(): Promise<void>;
}

const usualPort = 7700;

/** Built by Vite into the package. */
export const builtPage = fileURLToPath(new URL("../../../dist/web", import.meta.url));

/** @throws UserError if the path is not viewable, or the port is taken */
export async function startViewer(options: ViewerOptions): Promise<RunningViewer> {
  const { path, host, port = usualPort, page = builtPage, cache } = options;
  const token = options.token ?? (isLoopback(host) ? null : randomBytes(16).toString("hex"));
  const viewer = openViewer(path, cache);
  const live = createLive(viewer);
  const app = createApp({ viewer, live, token, page });
  const server = createServer(getRequestListener(app.fetch));
  const url = await listen(server, { host, port })
    .catch((error: NodeJS.ErrnoException) => {
      if (options.port !== undefined || error.code !== "EADDRINUSE") throw error;
      return listen(server, { host, port: 0 });
    })
    .catch((error: Error) => {
      viewer.close();
      throw new UserError(`the viewer cannot listen on ${host}:${port}: ${error.message}`, {
        hint: "choose another with --port, or --port 0 for a free one",
        cause: error,
      });
    });
  return {
    url: `${url}/${token === null ? "" : `?token=${token}`}`,
    isEmpty: viewer.names().length === 0,
    async close() {
      live.close();
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
      viewer.close();
    },
  };
}
