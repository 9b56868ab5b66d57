/** Long lists. Only the visible part is in the document; the window scrolls. */
import {
  observeWindowOffset,
  observeWindowRect,
  Virtualizer,
  type VirtualizerOptions,
  windowScroll,
} from "@tanstack/virtual-core";
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useReducer, useRef, useState } from "preact/hooks";

export interface VirtualListProps {
  count: number;
  /** Expected height in pixels; real heights are measured. */
  estimate: (index: number) => number;
  keyOf?: (index: number) => string | number;
  children: (index: number) => ComponentChildren;
  class?: string;
  role?: "list" | "rowgroup";
  /** Items before and after the visible ones. Default 6. */
  overscan?: number;
  /** Scrolls to this item whenever it changes. */
  shown?: number | undefined;
}

const initialRect = { width: 1024, height: 800 };

export function VirtualList({
  count,
  estimate,
  keyOf,
  children,
  role = "list",
  overscan = 6,
  shown,
  ...props
}: VirtualListProps) {
  const [, draw] = useReducer((turn: number) => turn + 1, 0);
  const [margin, setMargin] = useState(0);
  const element = useRef<HTMLDivElement>(null);
  const options: VirtualizerOptions<Window, HTMLElement> = {
    count,
    estimateSize: estimate,
    overscan,
    scrollMargin: margin,
    initialRect,
    getScrollElement: () => window,
    observeElementRect: observeWindowRect,
    observeElementOffset: observeWindowOffset,
    scrollToFn: windowScroll,
    onChange: () => draw(undefined),
    ...(keyOf ? { getItemKey: keyOf } : {}),
  };
  const made = useRef<Virtualizer<Window, HTMLElement>>(undefined);
  made.current ??= new Virtualizer(options);
  const virtualizer = made.current;
  virtualizer.setOptions(options);
  useLayoutEffect(() => virtualizer._didMount(), [virtualizer]);
  // After the position of the list is known.
  useEffect(() => {
    if (shown !== undefined) virtualizer.scrollToIndex(shown, { align: "center" });
  }, [shown, virtualizer]);
  useLayoutEffect(() => {
    virtualizer._willUpdate();
    const top = element.current!.getBoundingClientRect().top + scrollY;
    if (Math.abs(top - margin) > 1) setMargin(top);
  });
  return (
    <div
      {...props}
      ref={element}
      role={role}
      style={{ height: `${virtualizer.getTotalSize()}px`, position: "relative" }}
    >
      {virtualizer.getVirtualItems().map(({ key, index, start }) => (
        <div
          key={key}
          data-index={index}
          ref={(item) => virtualizer.measureElement(item)}
          class="virtual"
          role={role === "list" ? "listitem" : "presentation"}
          style={{ transform: `translateY(${start - margin}px)` }}
        >
          {children(index)}
        </div>
      ))}
    </div>
  );
}
