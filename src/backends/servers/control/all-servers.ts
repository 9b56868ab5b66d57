/** Combines the control routes of several servers. A server that is back after a failure gets the weights that it lacks. */
import { UserError } from "../../../errors.ts";
import type { Server } from "../server.ts";
import type { ServerGroup } from "../server-group.ts";
import type { Control, ServedModel } from "./control.ts";

export function allServers(group: ServerGroup, controlOf: (server: Server) => Control): Control {
  const controls = new Map(
    group.servers.map((server) => [server, { control: controlOf(server), has: new Set<string>() }]),
  );
  let served: string | undefined;
  /** Adapters that every server should have, by name. */
  const wanted = new Map<string, string>();
  let weights: { path: string; version: string } | undefined;
  const each = <T>(ask: (control: Control) => Promise<T>) => group.each((server) => ask(controls.get(server)!.control));

  async function readModel(server: Server): Promise<ServedModel> {
    const { control, has } = controls.get(server)!;
    const model = await control.model();
    has.clear();
    for (const { name } of model.adapters) has.add(name);
    return model;
  }

  async function load(server: Server, name: string, path: string): Promise<void> {
    const { control, has } = controls.get(server)!;
    if (has.has(name)) return;
    await control.loadAdapter(name, path);
    has.add(name);
  }

  async function unload(server: Server, name: string): Promise<void> {
    const { control, has } = controls.get(server)!;
    if (has.delete(name)) await control.unloadAdapter(name);
  }

  async function restore(server: Server): Promise<boolean> {
    const { name } = await readModel(server);
    if (served !== undefined && name !== served) throw new Error(`it serves ${name} instead of ${served}`);
    const { control, has } = controls.get(server)!;
    let lacked = false;
    // More adapters may be published meanwhile.
    for (;;) {
      const missing = [...wanted].find(([name]) => !has.has(name));
      if (weights && (await control.weightVersion()) !== weights.version) {
        await control.loadWeights(weights.path, weights.version);
      } else if (missing) await load(server, ...missing);
      else return lacked;
      lacked = true;
    }
  }

  const restoring = new Map<Server, Promise<boolean>>();
  group.restore = (server) => {
    const running = restoring.get(server) ?? restore(server).finally(() => restoring.delete(server));
    restoring.set(server, running);
    return running;
  };

  return {
    async model() {
      const models = await group.each(readModel);
      const [first, ...others] = models;
      const other = others.find(({ name }) => name !== first!.name);
      if (other) {
        throw new UserError(`the inference servers serve different models: ${first!.name} and ${other.name}`, {
          hint: "serve the same model everywhere, with the same --served-model-name",
        });
      }
      served = first!.name;
      return joinModels(models);
    },
    async tokenize(model, text) {
      const [first, ...others] = await each((control) => control.tokenize(model, text));
      if (others.every((tokens) => tokens.join() === first!.join())) return first!;
      throw new UserError("the inference servers have different tokenizers", {
        hint: "serve the same model everywhere",
      });
    },
    async loadAdapter(name, path) {
      wanted.set(name, path);
      await group.each((server) => load(server, name, path));
    },
    async unloadAdapter(name) {
      wanted.delete(name);
      await group.each((server) => unload(server, name));
    },
    async loadWeights(path, version) {
      weights = { path, version };
      await each((control) => control.loadWeights(path, version));
    },
    async joinGroup(weightGroup) {
      await each(async (control) => control.joinGroup?.(weightGroup));
    },
    async receiveWeights(weightGroup, version) {
      await each(async (control) => control.receiveWeights?.(weightGroup, version));
    },
    weightVersion: async () => [...new Set(await each((control) => control.weightVersion()))].join(", "),
    async sleep() {
      await each((control) => control.sleep());
    },
    async wake() {
      await each((control) => control.wake());
    },
  };
}

function joinModels(models: readonly ServedModel[]): ServedModel {
  const lengths = models.flatMap(({ maxLength }) => maxLength ?? []);
  const adapters = new Map(models.flatMap((model) => model.adapters).map((adapter) => [adapter.name, adapter]));
  return {
    ...models[0]!,
    maxLength: lengths.length > 0 ? Math.min(...lengths) : undefined,
    adapters: [...adapters.values()],
  };
}
