/** `rllm.sdk` and `rllm.gateway`: the server through which agents call the model, and what it records. */
import { z } from "zod";
import { count, text } from "./about.ts";

export const sdk = z
  .strictObject({
    store: z
      .strictObject({
        path: text
          .default("~/.rllm/traces.db")
          .describe("The trace database; naming another one asks for traces, as rllm.gateway.store=sqlite does."),
        retention_days: z
          .number()
          .gt(0)
          .nullable()
          .default(null)
          .describe("Days after which traces are deleted when a run opens the database; null keeps them."),
      })
      .prefault({}),
    processing: z
      .strictObject({
        groupby_key: text
          .nullable()
          .default(null)
          .describe("Calls with the same value of this metadata key are one trajectory; null: those of one role."),
        traj_name_key: text.nullable().default(null).describe("The metadata key that names a trajectory."),
      })
      .prefault({}),
    proxy: z
      .strictObject({
        host: text.default("127.0.0.1").describe("Where the gateway listens, unless rllm.gateway.host says otherwise."),
        port: count
          .min(0)
          .max(65_535)
          .default(4000)
          .describe("Its port, unless rllm.gateway.port says otherwise. In mode subprocess 4000 means any free one.")
          .meta({ note: "Agents that Hone starts are told the port, so that runs side by side do not collide." }),
        mode: z
          .enum(["subprocess", "external"])
          .default("subprocess")
          .describe("Who calls: agents in this process or started by it (subprocess), or agents that live elsewhere.")
          .meta({ note: "In rLLM it says who starts the proxy; Hone's gateway is a part of the trainer." }),
        admin_token: text
          .default("my-shared-secret")
          .describe(
            "The key of administrative requests. Where other machines reach the gateway, the default is refused.",
          )
          // biome-ignore lint/suspicious/noTemplateCurlyInString: the configuration's references are spelled like that
          .meta({ secret: true, note: "It is not saved with a run: give it as ${oc.env:HONE_ADMIN_TOKEN}." }),
      })
      .prefault({}),
  })
  .prefault({});

export const gateway = z
  .strictObject({
    host: text.nullable().default(null).describe("Where the gateway listens; null is rllm.sdk.proxy.host."),
    port: count
      .min(0)
      .max(65_535)
      .nullable()
      .default(null)
      .describe("Its port; 0 takes a free one, null is rllm.sdk.proxy.port.")
      .meta({ note: "rLLM's default is 9090." }),
    tunnel: text
      .nullable()
      .default(null)
      .describe(
        "The address of a tunnel to the gateway (http:// or https://). Off loopback, calls then need API keys.",
      ),
    store: z
      .enum(["memory", "sqlite"])
      .default("memory")
      .describe("Where calls are kept beside the episodes: nowhere (memory), or in a database (sqlite)."),
    db_path: text.nullable().default(null).describe("The database of store=sqlite; null is rllm.sdk.store.path."),
    unenforceable: z
      .enum(["refuse", "allow"])
      .default("refuse")
      .describe(
        "Demands that sampling cannot guarantee (strict schemas, a required tool): refuse them, or count them.",
      ),
    client_sampling: z
      .enum(["ignore", "honour"])
      .default("ignore")
      .describe("Temperature, top_p, top_k, min_p and seed of agents' own calls: ignored and counted, or honoured.")
      .meta({ note: "A fixed seed or temperature 0 would make all rollouts of a task the same." }),
    cumulative_token_mode: z
      .boolean()
      .default(false)
      .describe("Continue a conversation by its recorded tokens, as Hone always does.")
      .meta({ neutral: [true], note: "In rLLM it is a mode; in Hone tokens are never encoded again." }),
    renderer_family: text
      .default("auto")
      .describe("How messages become tokens; auto takes the model's own chat template.")
      .meta({ later: "messages are always rendered by the model's own chat template yet" }),
  })
  .prefault({});
