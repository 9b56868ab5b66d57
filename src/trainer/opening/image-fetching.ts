/** From which addresses a run fetches images: those of its data, and those that clients of its gateway name. */
import type { Config } from "../../config/schema.ts";
import { addressRules } from "../../images/address-rules.ts";
import type { Fetching } from "../../images/load-image.ts";

export const imageFetching = ({ data, rllm }: Config, log: (line: string) => void): Fetching => ({
  own: addressRules(["*", ...data.image_hosts]),
  clients: addressRules(rllm.gateway.image_hosts),
  log,
});
