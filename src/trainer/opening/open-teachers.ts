/** Opens the teachers of a run, and checks that they can read what the policy reads. */
import type { Engine, Learner, Teacher } from "../../backends/engine.ts";
import { openServerTeacher } from "../../backends/teachers/server-teacher.ts";
import { learnerTeacher } from "../../backends/teachers/teachers.ts";
import type { TeacherSpec } from "../../backends/teachers/teachers-in.ts";
import { type Blind, renderWithImages, type Vision } from "../../chat/images/prepare-images.ts";
import type { Chat } from "../../chat/types.ts";
import type { Dataset } from "../../data/types.ts";
import { UserError } from "../../errors.ts";
import type { Step } from "../../trajectories/types.ts";
import type { Experiment } from "../experiment.ts";
import type { TeachingOptions } from "../recipe/distillation-options.ts";
import type { NamedTeacher, Teaching } from "../update/ask-teachers.ts";

interface Parts {
  engine: Engine;
  /** The policy's, which teaches itself if no teacher is named. */
  learner: Learner;
  /** The name of the policy's model. */
  policy: string;
  chat: Chat;
  vision: Vision | Blind;
  experiment: Pick<Experiment<unknown>, "train" | "teacherPrompt">;
  warn: (text: string) => void;
  closeLater: (close: () => Promise<void>) => void;
}

/** @throws UserError when a teacher cannot be used, or a row names none of them */
export async function openTeachers(parts: Parts, options: TeachingOptions): Promise<Teaching> {
  const { engine, learner, experiment, chat, vision } = parts;
  const { teachers: specs, column, count, longest } = options;
  const teachers = new Map<string | null, NamedTeacher>();
  for (const spec of specs) teachers.set(spec.key, { name: spec.name, teacher: await openOne(parts, spec) });
  if (specs.length === 0) teachers.set(null, { name: "policy", teacher: learnerTeacher(learner) });
  for (const { name, teacher } of teachers.values()) requireUsable(name, teacher, { longest, count });
  requireFew(count, engine.model.vocabularySize);
  const [only] = teachers.values();

  const { train, teacherPrompt } = experiment;
  const rowOf = teacherPrompt || column !== undefined ? rowsById(train) : () => undefined;
  if (column !== undefined) requireKeys(train, column, [...teachers.keys()]);
  return {
    teacherOf: (taskId) => (column === undefined ? only! : teachers.get(keyOf(rowOf(taskId), column))!),
    promptOf:
      teacherPrompt &&
      (async (taskId: string, { messages, tools }: Step) => {
        const prompt = await teacherPrompt(rowOf(taskId), messages);
        const { tokens, media } = await renderWithImages(chat, vision, prompt, tools ? { tools } : {});
        return { tokens, media };
      }),
    maxLength: engine.model.maxLength,
    count,
  };
}

async function openOne({ engine, policy, chat, warn, closeLater }: Parts, spec: TeacherSpec): Promise<Teacher> {
  if (spec.kind === "model") {
    const other = spec.model === policy ? {} : { model: spec.model };
    const learner = await engine.createLearner({ adapter: { kind: "none" }, ...other });
    closeLater(() => learner.close());
    return learnerTeacher(learner);
  }
  const { url, model, apiKey, name } = spec;
  const setting = `distillation.teacher_models.${name}`;
  const key = typeof apiKey === "object" ? keyIn(apiKey.variable, setting) : apiKey;
  const encode = (text: string) => chat.encode(text);
  const policyModel = { model: engine.model, images: engine.images, encode };
  const { teacher, close } = await openServerTeacher({ url, model, apiKey: key, setting }, policyModel, warn);
  closeLater(close);
  return teacher;
}

function keyIn(variable: string, setting: string): string {
  const key = process.env[variable];
  if (key) return key;
  throw new UserError(`${setting}.api_key_env: the environment variable ${variable} is not set`, {
    hint: "set it, or remove api_key_env",
  });
}

function requireUsable(name: string, teacher: Teacher, { longest, count }: Pick<TeachingOptions, "longest" | "count">) {
  const { maxLength } = teacher;
  if (maxLength !== undefined && maxLength < longest) {
    throw new UserError(
      `the teacher ${name} reads at most ${maxLength} tokens, but a prompt and its reply can have ${longest}`,
      { hint: "lower data.max_prompt_length, data.max_response_length or training.max_length" },
    );
  }
  if (count > 0 && !teacher.mostLikely) {
    throw new UserError(`the teacher ${name} does not return its most likely tokens`, {
      hint: "distillation.distillation_loss.loss_mode=k1 reads only the sampled tokens",
    });
  }
}

function requireFew(count: number, vocabularySize: number): void {
  if (count <= vocabularySize) return;
  throw new UserError(
    `distillation.distillation_loss.topk is ${count}, but the vocabulary has only ${vocabularySize} tokens`,
  );
}

/** Finds rows by the ids of their tasks, which episodes keep. */
function rowsById(train: Dataset<unknown>): (taskId: string) => unknown {
  let indices: Map<string, number> | undefined;
  return (taskId) => {
    indices ??= new Map(Array.from({ length: train.size }, (_, index) => [train.task(index).id, index]));
    return train.task(indices.get(taskId)!).row;
  };
}

function keyOf(row: unknown, column: string): string {
  const value = typeof row === "object" && row !== null ? (row as Record<string, unknown>)[column] : undefined;
  return String(value);
}

function requireKeys(train: Dataset<unknown>, column: string, known: readonly (string | null)[]): void {
  for (let index = 0; index < train.size; index++) {
    const { row, origin } = train.task(index);
    const key = keyOf(row, column);
    if (known.includes(key)) continue;
    throw new UserError(`${origin}: its ${column} is ${key}, which is not the key of a teacher`, {
      hint: `the keys in distillation.teacher_models are ${known.join(", ")}; distillation.teacher_key names the column`,
    });
  }
}
