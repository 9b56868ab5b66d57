/** A server that random requests are sent to, and what its answers must be like. */
import type { FuzzRequest, Template } from "./fuzz-request.fixture.ts";

export const secrets = {
  admin: "fuzz-admin-secret-4711",
  api: "tml-fuzz-secret-4711",
  environment: "fuzz-environment-4711",
};

export interface Answer {
  status: number;
  type: string;
  text: string;
}

export interface Target {
  templates: Template[];
  send(request: FuzzRequest, random: () => number): Promise<Answer>;
  /** @throws for an error that is not of the API's shape */
  checkError(answer: Answer): void;
  /** Sends the requests that follow from an answer. */
  follow?(answer: Answer): Promise<Answer[]>;
  /** Text that answers must not contain. */
  secrets: string[];
  alive(): Promise<void>;
  url: string;
  close(): Promise<void>;
}
