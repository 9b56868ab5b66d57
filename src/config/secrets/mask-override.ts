/** Masks the value of an override that sets a secret: `rllm.sdk.proxy.admin_token=***`. */
import { maskUrls } from "../../mask-urls.ts";
import { configKeys } from "../describe.ts";

const secrets = [...configKeys.values()].filter(({ about }) => about.secret === true).map(({ key }) => key);

export function maskOverride(text: string): string {
  const key = /^\s*[+~]*([^=]*)=/.exec(text)?.[1]?.trim();
  if (
    key === undefined ||
    !secrets.some((secret) => `${secret}.`.startsWith(`${key}.`) || key.startsWith(`${secret}.`))
  ) {
    return maskUrls(text);
  }
  return `${text.slice(0, text.indexOf("=") + 1)}***`;
}
