/** The filter of episodes, in the same language as in the terminal. */
import { useEffect, useRef, useState } from "preact/hooks";
import type { ApiError } from "../../src/apps/view/server.ts";
import { embedded, parameter, setParameters } from "../state/address.ts";
import { useAnswer } from "../state/fetch.ts";
import { Pending } from "./basics.tsx";
import { printable } from "./printable.ts";

/** Waits until the user stops typing. */
const typingMilliseconds = 250;

/** A report has no filter, because it contains only chosen episodes. */
export function FilterBox(props: FilterBoxProps) {
  if (embedded === undefined) return <LiveFilterBox {...props} />;
  return props.error ? <Pending error={props.error} /> : null;
}

interface FilterBoxProps {
  error: ApiError | undefined;
  /** The parameter of the address. */
  name?: string;
}

function LiveFilterBox({ error, name = "filter" }: FilterBoxProps) {
  const fields = useAnswer("/api/fields", {}).data;
  const given = parameter(name);
  const [text, setText] = useState(given);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  // A filter that the page sets in another way replaces what was typed.
  useEffect(() => {
    setText(given);
    return () => clearTimeout(timer.current);
  }, [given]);
  const type = (typed: string) => {
    setText(typed);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setParameters({ [name]: typed }), typingMilliseconds);
  };
  return (
    <div class="filter">
      <input
        type="search"
        spellcheck={false}
        autocomplete="off"
        placeholder={fields?.examples[0] ?? "reward<0.2 and termination=timeout"}
        aria-label="filter episodes"
        aria-invalid={error?.at !== undefined}
        aria-describedby="filter-error"
        value={text}
        onInput={(event) => type(event.currentTarget.value)}
        onKeyDown={(event) => event.key === "Enter" && setParameters({ [name]: text })}
      />
      <FilterError error={error} text={given} />
      {fields && (
        <details class="fields">
          <summary>Fields and examples</summary>
          <ul>
            {fields.examples.map((example) => (
              <li key={example}>
                <button type="button" class="link" onClick={() => setParameters({ [name]: example })}>
                  {example}
                </button>
              </li>
            ))}
          </ul>
          <dl>
            {fields.fields.map(({ name, type, about, values }) => (
              <div key={name}>
                <dt>
                  <code>{name}</code> <small class="muted">{type}</small>
                </dt>
                <dd>
                  {about}
                  {values && <small class="muted"> {printable(values.join(", "))}</small>}
                </dd>
              </div>
            ))}
          </dl>
        </details>
      )}
    </div>
  );
}

function FilterError({ error, text }: { error: ApiError | undefined; text: string }) {
  if (!error) return <p id="filter-error" class="hidden" />;
  const { at, length = 1 } = error;
  return (
    <p id="filter-error" class="note failure" role="alert">
      {printable(error.error)} {error.hint && <span class="muted">{printable(error.hint)}</span>}
      {at !== undefined && (
        <code>
          {text.slice(0, at)}
          <mark>{text.slice(at, at + length) || "⎵"}</mark>
          {text.slice(at + length)}
        </code>
      )}
    </p>
  );
}
