/** Failures, grouped by where they happened and by message. */
import type { FailureGroup } from "../../src/apps/view/queries/failures.ts";
import { Empty, Link, Pending } from "../parts/basics.tsx";
import { FilterBox } from "../parts/filter-box.tsx";
import { count } from "../parts/numbers.ts";
import { oneLine, printable } from "../parts/printable.ts";
import { address, href, parameter } from "../state/address.ts";
import { useAnswer } from "../state/fetch.ts";

export function Failures({ run }: { run: string }) {
  const { data, error } = useAnswer("/api/runs/:run/failures", { run, filter: parameter("filter") });
  const max = Math.max(1, ...(data?.terminations.map(({ count }) => count) ?? []));
  return (
    <>
      <div class="head">
        <h1>Failures</h1>
      </div>
      <FilterBox error={error?.at === undefined ? undefined : error} />
      {!data && <Pending error={error?.at === undefined ? error : undefined} />}
      {data && (
        <>
          <section class="card">
            <h2>How episodes ended</h2>
            <ul class="bars">
              {data.terminations.map(({ termination, count }) => (
                <li key={termination}>
                  <Link to={address(["runs", run, "episodes"], { filter: `termination=${termination}` })}>
                    {oneLine(termination.replaceAll("_", " "))}
                  </Link>
                  <i style={{ inlineSize: `${(count / max) * 100}%` }} />
                  <b>{count.toLocaleString("en")}</b>
                </li>
              ))}
            </ul>
          </section>
          <FailureList run={run} title="Failed episodes" failures={data.failures} none="No episode failed." />
          <FailureList
            run={run}
            title="Failed attempts that were retried"
            failures={data.retries}
            none="No attempt was retried."
          />
        </>
      )}
    </>
  );
}

function FailureList({
  run,
  title,
  failures,
  none,
}: {
  run: string;
  title: string;
  failures: readonly FailureGroup[];
  none: string;
}) {
  return (
    <section>
      <h2>{title}</h2>
      {failures.length === 0 && <Empty>{none}</Empty>}
      {failures.map(({ kind, boundary, message, count: times, steps, filter, examples }) => (
        <article key={`${boundary} ${message}`} class="card failure-card">
          <header>
            <b class="times">{times.toLocaleString("en")}×</b>
            <span class="badge">{boundary.replaceAll("_", " ")}</span>
            <span class="muted">
              {kind === boundary ? "" : `${kind}, `}
              {steps[0] === steps[1] ? `step ${steps[0]}` : `steps ${steps[0]} to ${steps[1]}`}
            </span>
            <a href={href(address(["runs", run, "episodes"], { filter }))} data-row>
              {count(times, "episode")}
            </a>
          </header>
          <pre>{printable(message)}</pre>
          <p class="muted">
            {examples.map(({ key, id, step }) => (
              <Link key={key} to={address(["runs", run, "episodes", key])}>
                {oneLine(id)} (step {step})
              </Link>
            ))}
          </p>
        </article>
      ))}
    </section>
  );
}
