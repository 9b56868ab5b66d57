/** Parts of the server that no training loop needs. The rest of the server does not know which there are. */
import type { Hono } from "hono";
import type { Service } from "./service.ts";

export interface Feature {
  /** Under `/api/v1`. */
  api?: Hono;
  /** At the root. */
  root?: Hono;
  /** At the root, without the API key and the limit on bodies. */
  open?: Hono;
  /** Called at every regular clean-up, and before the server ends. */
  sweep?(): void;
}

export type OpenFeature = (service: Service) => Feature;
