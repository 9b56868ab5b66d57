/** What a client is told when its call cannot be answered; each API spells it in its own shape. */

export type ErrorKind =
  /** The request is wrong, or asks for something that cannot be promised. */
  | "invalid_request"
  /** The prompt is longer than the limits allow. */
  | "prompt_too_long"
  | "authentication"
  /** A web page sent the request. */
  | "forbidden"
  | "not_found"
  /** The rollout that this address belongs to is over. */
  | "session_ended"
  | "too_large"
  /** The body is not declared as JSON. */
  | "wrong_type"
  /** The engine did not answer, or answered something that is no sample. */
  | "engine_failed"
  | "timeout";

interface Spelling {
  status: number;
  openai: { type: string; code: string | null };
  anthropic: string;
}

const spellings: Record<ErrorKind, Spelling> = {
  invalid_request: {
    status: 400,
    openai: { type: "invalid_request_error", code: null },
    anthropic: "invalid_request_error",
  },
  prompt_too_long: {
    status: 400,
    openai: { type: "invalid_request_error", code: "context_length_exceeded" },
    anthropic: "invalid_request_error",
  },
  authentication: {
    status: 401,
    openai: { type: "authentication_error", code: "invalid_api_key" },
    anthropic: "authentication_error",
  },
  forbidden: {
    status: 403,
    openai: { type: "invalid_request_error", code: "forbidden" },
    anthropic: "permission_error",
  },
  not_found: {
    status: 404,
    openai: { type: "invalid_request_error", code: "not_found" },
    anthropic: "not_found_error",
  },
  session_ended: {
    status: 410,
    openai: { type: "invalid_request_error", code: "session_ended" },
    anthropic: "invalid_request_error",
  },
  too_large: {
    status: 413,
    openai: { type: "invalid_request_error", code: "request_too_large" },
    anthropic: "request_too_large",
  },
  wrong_type: {
    status: 415,
    openai: { type: "invalid_request_error", code: "unsupported_media_type" },
    anthropic: "invalid_request_error",
  },
  engine_failed: { status: 500, openai: { type: "server_error", code: "engine_failed" }, anthropic: "api_error" },
  timeout: { status: 504, openai: { type: "server_error", code: "timeout" }, anthropic: "timeout_error" },
};

/** A message may repeat what a client sent. */
const longestMessage = 4000;

export class GatewayError extends Error {
  override name = "GatewayError";
  readonly kind: ErrorKind;
  /** The parameter at fault, as the client spelled it. */
  readonly parameter: string | null;

  constructor(kind: ErrorKind, message: string, options: { parameter?: string; cause?: unknown } = {}) {
    super(
      message.length > longestMessage ? `${message.slice(0, longestMessage)}...` : message,
      options.cause === undefined ? undefined : { cause: options.cause },
    );
    this.kind = kind;
    this.parameter = options.parameter ?? null;
  }

  get status(): number {
    return spellings[this.kind].status;
  }
}

export type ErrorShape = (error: GatewayError) => unknown;

/** `{ error: { message, type, param, code } }` */
export const openaiError: ErrorShape = (error) => ({
  error: { message: error.message, param: error.parameter, ...spellings[error.kind].openai },
});

/** `{ type: "error", error: { type, message } }` */
export const anthropicError: ErrorShape = (error) => ({
  type: "error",
  error: { type: spellings[error.kind].anthropic, message: error.message },
});
