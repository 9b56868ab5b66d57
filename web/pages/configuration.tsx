/** The configuration of a run: every value, where it was set, and what it means. */
import type { ConfigEntry } from "../../src/apps/view/queries/run.ts";
import { Choice, Empty, Pending } from "../parts/basics.tsx";
import { count } from "../parts/numbers.ts";
import { printable } from "../parts/printable.ts";
import { parameter, setParameters } from "../state/address.ts";
import { useAnswer } from "../state/fetch.ts";

/** Whether the value was set, and is not one of Hone's defaults. */
const isChosen = (origin: ConfigEntry["origin"]) => origin !== undefined && origin.kind !== "default";

export const valueText = (value: unknown): string =>
  typeof value === "string" ? value : (JSON.stringify(value) ?? "–");

export function Configuration({ run }: { run: string }) {
  const { data, error } = useAnswer("/api/runs/:run/config", { run });
  if (!data) return <Pending error={error} />;
  const words = parameter("q").toLowerCase().split(/\s+/);
  const all = parameter("keys") === "all";
  const entries = data.entries
    .filter(({ origin }) => all || isChosen(origin))
    .filter(({ key, value, about, origin }) => {
      const text = `${key} ${valueText(value)} ${about ?? ""} ${origin?.text ?? ""}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
  return (
    <>
      <div class="head">
        <h1>Configuration</h1>
        <Choice
          label="keys"
          value={all ? "all" : "chosen"}
          options={[
            { value: "chosen", label: "set for this run" },
            { value: "all", label: "all" },
          ]}
          onChange={(keys) => setParameters({ keys: keys === "all" ? "all" : null })}
        />
        <input
          type="search"
          placeholder="key, value, meaning"
          aria-label="search the configuration"
          value={parameter("q")}
          onInput={(event) => setParameters({ q: event.currentTarget.value })}
        />
        <span class="muted">{count(entries.length, "key")}</span>
      </div>
      {entries.length === 0 && <Empty>No key matches.</Empty>}
      <dl class="config">
        {entries.map(({ key, value, origin, about }) => (
          <div key={key}>
            <dt>
              <code data-row tabIndex={-1}>
                {printable(key)}
              </code>
            </dt>
            <dd>
              <code>{printable(valueText(value))}</code>
              <span class={isChosen(origin) ? "origin chosen" : "origin"}>
                {printable(origin?.text ?? "origin not recorded")}
              </span>
            </dd>
            {about && <dd class="muted">{printable(about)}</dd>}
          </div>
        ))}
      </dl>
    </>
  );
}
