/** `sft` and `dpo`: learning from rows and from pairs. */
import { z } from "zod";
import { preferenceLosses, reductions } from "../../algorithms/losses/supervised.ts";
import { aboveZero, section } from "./about.ts";

export const trainedParts = [
  "all_assistant_messages",
  "last_assistant_message",
  "last_assistant_turn",
  "all_messages",
  "all_tokens",
  "customized",
] as const;

const namesOf = <Name extends string>(table: Readonly<Record<Name, unknown>>) =>
  Object.keys(table) as [Name, ...Name[]];

export const sft = section({
  train_on: z
    .enum(trainedParts)
    .default("all_assistant_messages")
    .describe(
      'Which parts of a conversation are learned. last_assistant_turn: the assistant\'s messages after the last user message. all_messages: every message without its header. customized: the messages with "trainable": true.',
    )
    .meta({ note: "TRL learns all tokens by default, and the assistant's messages with assistant_only_loss=true." }),
  reduction: z
    .enum(namesOf(reductions))
    .default("token-mean")
    .describe(
      "How the tokens' losses become one number: token-mean over the batch (TRL, verl); token-sum (rLLM on Tinker); example-mean, the mean over examples of each one's mean; example-mean-sum, their sum (Tinker cookbook). Learning rates do not carry over.",
    ),
  loss_type: z
    .enum(["nll", "dft"])
    .default("nll")
    .describe("nll: negative log-likelihood. dft: each token's loss times its own probability (arXiv 2508.05629)."),
});

export const dpo = section({
  loss_type: z
    .enum(namesOf(preferenceLosses))
    .default("sigmoid")
    .describe("The loss of a pair, under TRL's names; ipo and sigmoid_norm compare means over tokens."),
  beta: aboveZero.default(0.1).describe("How strongly the policy is held to the reference, the model before training."),
  label_smoothing: z.number().min(0).lt(0.5).default(0).describe("The probability that a pair's label is wrong."),
});
