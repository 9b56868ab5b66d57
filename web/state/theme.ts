/** Light or dark: the system's setting until the user chooses. */
import { computed, effect, signal } from "@preact/signals";

type Theme = "light" | "dark";

const key = "hone-theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const systemTheme = signal<Theme>(system.matches ? "dark" : "light");
system.addEventListener("change", () => {
  systemTheme.value = system.matches ? "dark" : "light";
});

const stored = localStorage.getItem(key);
const chosen = signal<Theme | null>(stored === "light" || stored === "dark" ? stored : null);

export const theme = computed(() => chosen.value ?? systemTheme.value);

effect(() => {
  document.documentElement.style.colorScheme = theme.value;
});

export function switchTheme(): void {
  const next = theme.peek() === "dark" ? "light" : "dark";
  chosen.value = next === systemTheme.peek() ? null : next;
  if (chosen.peek() === null) localStorage.removeItem(key);
  else localStorage.setItem(key, next);
}

/** A color of the style sheet as a canvas needs it, e.g. `color("--text")`. */
export function color(variable: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(${variable})`;
  document.body.append(probe);
  const resolved = getComputedStyle(probe).color;
  probe.remove();
  return resolved;
}
