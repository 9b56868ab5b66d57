/**
 * Training by a Tinker service. A loss that the service has runs there by name, in one pass. Any other loss takes a forward
 * pass, then cross entropy weighted by the negated gradient of the loss, which has the same gradient.
 */
import type { HostedLoss, Loss } from "../../algorithms/types.ts";
import {
  type DatumOutput,
  decodeForwardBackwardOutput,
  encodeForwardBackwardRequest,
} from "../../tinker-protocol/training.ts";
import type { Sequence, TokenOutputs } from "../../trajectories/types.ts";
import { checkLossValue, NonFiniteLossError } from "../check-loss-value.ts";
import type { ForwardBackwardResult } from "../engine.ts";
import { hostedLosses } from "./capabilities.ts";
import { chunksOf, type DatumInputs, gatherOutputs, type Planned, planDatums, toDatum } from "./datums.ts";
import { readChunks } from "./images.ts";
import type { TinkerSession } from "./session.ts";

/** A model of the service; its operations are numbered from 1 and run in that order. */
export interface RemoteModel {
  id: string;
  nextSeq(): number;
}

/** A backward that the service has accepted: it runs before later requests. */
export interface AcceptedBackward {
  /** False if the gradient is zero everywhere, so nothing was sent. */
  adds: boolean;
  result: Promise<ForwardBackwardResult>;
}

interface Pass {
  lossFn: string;
  config: Readonly<Record<string, number>>;
  /** The loss's inputs of each planned sequence. */
  inputs: readonly DatumInputs[];
  /** The outputs to compute, for each planned sequence: 0 leaves one out. Sent only to a service with `lossMasks`. */
  masks: readonly ArrayLike<number>[];
  forwardOnly: boolean;
}

const isInformative = (weights: ArrayLike<number>) => Array.from(weights).some((weight) => weight !== 0);

const ones = ({ places }: Planned) => new Float32Array(places.length).fill(1);

export function remoteTraining({ connection, capabilities, counts, media }: TinkerSession, model: RemoteModel) {
  const { lossMasks } = capabilities;

  /** Sends all parts of one call before waiting for answers. */
  async function send(
    plan: readonly Planned[],
    { lossFn, config, inputs, masks, forwardOnly }: Pass,
  ): Promise<{ answers: Promise<DatumOutput[]> }> {
    const chunks = await readChunks(
      plan.map(({ tokens, media: own }) => ({ tokens: tokens.subarray(0, -1), media: own })),
      media,
    );
    const datums = plan.map((planned, index) =>
      toDatum(
        chunks[index]!,
        planned,
        lossMasks ? { ...inputs[index], mask: masks[index] ?? [] } : { ...inputs[index] },
      ),
    );
    const requests = chunksOf(datums).map((data) =>
      encodeForwardBackwardRequest({
        modelId: model.id,
        seqId: model.nextSeq(),
        data,
        lossFn,
        forwardOnly,
        lossConfig: lossMasks ? { ...config, masked: 1 } : { ...config },
      }),
    );
    const accepted = await Promise.all(requests.map((request) => connection.post("forward_backward", request)));
    const kind = forwardOnly ? "forward" : "forward_backward";
    const answers = Promise.all(accepted.map((answer) => connection.collect(kind, answer)));
    // A caller that never awaits them has failed with another error.
    answers.catch(() => {});
    const decode = (part: unknown) => decodeForwardBackwardOutput(part as Uint8Array).outputs;
    return { answers: answers.then((results) => results.flatMap(decode)) };
  }

  async function forward(sequences: readonly Sequence[], plan: readonly Planned[]): Promise<TokenOutputs> {
    if (plan.length === 0) return gatherOutputs(sequences.length, plan, []);
    const weights = plan.map(ones);
    const inputs = weights.map((own) => ({ weights: own }));
    const pass = { lossFn: "cross_entropy", config: {}, inputs, masks: weights, forwardOnly: true };
    return gatherOutputs(sequences.length, plan, await (await send(plan, pass)).answers);
  }

  async function byName(
    sequences: readonly Sequence[],
    plan: readonly Planned[],
    loss: Loss,
    { name: lossFn, config, inputs }: HostedLoss,
  ): Promise<AcceptedBackward> {
    for (const [name, values] of Object.entries(inputs)) {
      const bad = values.find((value) => !Number.isFinite(value));
      if (bad !== undefined) throw new NonFiniteLossError(`the loss "${loss.name}" has ${bad} among its ${name}`);
    }
    counts.namedLosses++;
    const { answers } = await send(plan, {
      lossFn,
      config,
      inputs: slicesOf(inputs, plan),
      masks: plan.map(ones),
      forwardOnly: false,
    });
    const result = answers.then((found) => {
      const outputs = gatherOutputs(sequences.length, plan, found);
      const { loss: value, metrics } = evaluated(sequences, loss, outputs);
      return { loss: value, metrics, outputs };
    });
    result.catch(() => {});
    return { adds: true, result };
  }

  async function byGradient(
    sequences: readonly Sequence[],
    plan: readonly Planned[],
    loss: Loss,
  ): Promise<AcceptedBackward> {
    counts.twoPassLosses++;
    const outputs = await forward(sequences, plan);
    const { gradient, loss: value, metrics } = evaluated(sequences, loss, outputs);
    const weights = plan.map(({ sequence }) =>
      gradient.logprobs
        .subarray(outputs.offsets[sequence], outputs.offsets[sequence + 1])
        .map((slope) => (slope === 0 ? 0 : -slope)),
    );
    const result = { loss: value, metrics, outputs };
    const masks = weights.filter(isInformative);
    if (masks.length === 0) return { adds: false, result: Promise.resolve(result) };
    const parts = plan.filter((_, index) => isInformative(weights[index] ?? []));
    const inputs = masks.map((own) => ({ weights: own }));
    const { answers } = await send(parts, { lossFn: "cross_entropy", config: {}, inputs, masks, forwardOnly: false });
    const ended = answers.then(() => result);
    ended.catch(() => {});
    return { adds: true, result: ended };
  }

  return {
    forward: (sequences: readonly Sequence[]) => forward(sequences, planDatums(sequences)),
    async backward(sequences: readonly Sequence[], loss: Loss): Promise<AcceptedBackward> {
      const plan = planDatums(sequences);
      const hosted = loss.hosted?.();
      // Without a mask, dro by name also regularizes the prompt's tokens.
      const same = hosted && hostedLosses.includes(hosted.name) && (lossMasks || hosted.name !== "dro");
      return same && plan.length > 0 && !sequences.some(({ targets }) => targets)
        ? byName(sequences, plan, loss, hosted)
        : byGradient(sequences, plan, loss);
    },
  };
}

function evaluated(sequences: readonly Sequence[], loss: Loss, outputs: TokenOutputs) {
  const value = loss.evaluate(outputs, Int32Array.from(sequences.keys()));
  checkLossValue(loss.name, value, outputs);
  return value;
}

/** The inputs of each planned sequence out of those of all. */
function slicesOf(inputs: Readonly<Record<string, Float32Array>>, plan: readonly Planned[]): DatumInputs[] {
  let from = 0;
  return plan.map(({ places }) => {
    const to = from + places.length;
    const own = Object.entries(inputs).map(([name, values]) => [name, values.subarray(from, to)] as const);
    from = to;
    return Object.fromEntries(own);
  });
}
