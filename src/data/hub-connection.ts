/** The connection to the hub, and errors for its failures. */
import { HubApiError } from "@huggingface/hub";
import { HoneError, RunError, UserError } from "../errors.ts";
import { isTemporaryStatus, reasonOf } from "../http/retries.ts";

export interface HubConnection {
  /** `organization/name` */
  dataset: string;
  /** Parameters of every request to the hub. */
  request: { hubUrl: string } | { hubUrl: string; accessToken: string };
  /** Delay before the first retry; it doubles with each retry. */
  retryDelayMs: number;
  onStatus(text: string): void;
}

/** @throws UserError when the address or the token is invalid */
export function hubConnection(
  dataset: string,
  options: { hubUrl?: string; token?: string; retryDelayMs?: number; onStatus?: (text: string) => void },
): HubConnection {
  const hubUrl = (options.hubUrl ?? (process.env.HF_ENDPOINT || "https://huggingface.co")).replace(/\/+$/, "");
  if (!/^https?:\/\//.test(hubUrl) || !URL.canParse(hubUrl))
    throw new UserError(`HF_ENDPOINT is "${hubUrl}", which is not an http(s) URL`);
  const accessToken = options.token ?? process.env.HF_TOKEN?.trim();
  if (accessToken && !accessToken.startsWith("hf_")) {
    throw new UserError("HF_TOKEN is not a hub access token: those start with hf_", {
      hint: "Unset it for public datasets, or set a token with read access.",
    });
  }
  return {
    dataset,
    request: accessToken ? { hubUrl, accessToken } : { hubUrl },
    retryDelayMs: options.retryDelayMs ?? 1000,
    onStatus: options.onStatus ?? ((text) => void process.stderr.write(`${text}\n`)),
  };
}

/** Whether an error may be fixed by a retry: no connection, a lost connection, or a server error. */
export function isUnreachable(error: unknown): boolean {
  if (error instanceof HubApiError) return isTemporaryStatus(error.statusCode);
  if (error instanceof HoneError) return false;
  // The hub's client aborts a stream with a plain string.
  if (typeof error === "string") return true;
  if (!(error instanceof Error)) return false;
  if (error.name === "TimeoutError") return true;
  const network = /fetch failed|terminated|socket|network|other side closed|premature/i;
  const code = (error as NodeJS.ErrnoException).code ?? (error.cause as NodeJS.ErrnoException | undefined)?.code ?? "";
  return (
    network.test(error.message) ||
    /^(UND_ERR|ECONN|ENOTFOUND|EAI_AGAIN|ETIMEDOUT|EPIPE|ENETUNREACH|EHOSTUNREACH)/.test(code)
  );
}

const localHint =
  'If the hub cannot be reached, copy the split\'s .parquet or .jsonl file here and open it: openDataset("train.parquet").';

/** @param doing the operation that failed: `"listing files"` */
export function hubFailure({ dataset, request }: HubConnection, error: unknown, doing: string): HoneError {
  if (error instanceof HoneError) return error;
  if (isUnreachable(error)) {
    const { hostname } = new URL(request.hubUrl);
    return new RunError(`${dataset}: the hub ${hostname} cannot be reached (${doing}: ${reasonOf(error)})`, {
      hint: localHint,
      cause: error,
    });
  }
  if (error instanceof HubApiError) {
    const { statusCode } = error;
    if (statusCode === 401 || statusCode === 403) {
      return new UserError(
        `${dataset}: the hub denied access (${statusCode}); the dataset is private, gated, or does not exist`,
        {
          hint:
            "accessToken" in request
              ? "Check the name, and that the token in HF_TOKEN may read the dataset; accept a gated dataset's terms on its page."
              : "Check the name. For a private or gated dataset, set HF_TOKEN to a token that may read it.",
          cause: error,
        },
      );
    }
    if (statusCode === 404) {
      return new UserError(`${dataset}: dataset or revision not found on the hub`, {
        hint: "Write the dataset as organization/name, as in the URL of its page.",
        cause: error,
      });
    }
  }
  if ((error as NodeJS.ErrnoException).code === "ENOSPC") {
    return new RunError(`${dataset}: ${doing} failed: the disk is full`, {
      hint: "Free some space, or set HF_HUB_CACHE to a folder on a larger disk.",
      cause: error,
    });
  }
  return new RunError(`${dataset}: ${doing} failed: ${reasonOf(error)}`, { hint: localHint, cause: error });
}
