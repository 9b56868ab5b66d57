/** Pairs of a reply's answer and an expected answer that are equal, or different, by construction. */
import { randomInteger, uniforms } from "../../base/values.ts";

export interface Pair {
  /** A bare answer, or a whole reply in a model's style. */
  given: string;
  expected: string;
  same: boolean;
  kind: string;
  /** Of the usual kinds of school mathematics. */
  ordinary: boolean;
  isReply: boolean;
}

type Random = () => number;

/** Spellings of one value, and spellings of values that differ from it. */
interface Value {
  kind: string;
  ordinary: boolean;
  same: string[];
  different: string[];
}

const tex = (top: number, bottom: number) => (top < 0 ? `-\\frac{${-top}}{${bottom}}` : `\\frac{${top}}{${bottom}}`);
const signed = (value: number) => (value < 0 ? `- ${-value}` : `+ ${value}`);
const pick = <Item>(random: Random, items: readonly Item[]): Item => items[Math.floor(random() * items.length)] as Item;

/** Every value has its usual spelling first. */
const values: ((draw: (low: number, high: number) => number) => Value)[] = [
  (draw) => {
    const n = draw(2, 999);
    return {
      ...{ kind: "integer", ordinary: true },
      same: [`${n}`, `${n}.0`, `+${n}`, `${n}.00`, `x = ${n}`, `\\text{${n}}`, `${n} \\text{ cm}`, `${n} centimeters`],
      different: [
        `${n + 1}`,
        `-${n}`,
        `${n}1`,
        `${n}, ${n + 1}`,
        `${n}!`,
        `\\frac{1}{${n}}`,
        `${n}^2`,
        `${n} \\text{ or } ${n + 2}`,
      ],
    };
  },
  (draw) => {
    const [a, b] = [draw(1, 99), String(draw(0, 999)).padStart(3, "0")];
    return {
      ...{ kind: "thousands", ordinary: true },
      same: [`${a}${b}`, `${a},${b}`, `${a}{,}${b}`, `${a}\\,${b}`, `${a},\\!${b}`, `\\$${a},${b}`, `${a}${b}.00`],
      different: [`${a}`, `${a}, ${b}`, `${a}.${b}`, `${a}${b}0`, `(${a},${b})`],
    };
  },
  (draw) => {
    const [p, q] = [draw(1, 60) * 2 + 1, 2 ** draw(1, 4)];
    const minus = draw(0, 1) ? "-" : "";
    const top = minus ? -p : p;
    return {
      ...{ kind: "fraction", ordinary: true },
      same: [
        ...[
          tex(top, q),
          `${minus}${p}/${q}`,
          `${minus}\\dfrac{${p}}{${q}}`,
          `${top / q}`,
          `\\frac{${top * 3}}{${q * 3}}`,
        ],
        ...[`\\frac{${-top}}{-${q}}`, `${minus}${p} / ${q}`, `\\left(${top / q}\\right)`, `x = ${tex(top, q)}`],
        ...(p > q
          ? [`${minus}${Math.floor(p / q)}\\frac{${p % q}}{${q}}`, `${minus}${Math.floor(p / q)} ${p % q}/${q}`]
          : []),
      ],
      different: [
        tex(-top, q),
        tex(top, q + 2),
        `\\frac{${q}}{${top}}`,
        `${top}`,
        `${top / q + 0.001}`,
        `${top + 2}/${q}`,
      ],
    };
  },
  (draw) => {
    const [p, q] = [draw(1, 20) * 3 + 1, pick(() => draw(0, 99) / 100, [3, 9, 27])];
    return {
      ...{ kind: "third", ordinary: true },
      same: [
        tex(p, q),
        `${p}/${q}`,
        `\\tfrac{${2 * p}}{${2 * q}}`,
        `${p} \\div ${q}`,
        `\\frac${p > 9 ? `{${p}}` : p}${q > 9 ? `{${q}}` : q}`,
      ],
      different: [`${(p / q).toFixed(2)}`, `${(p / q).toFixed(4)}`, tex(p + 1, q), `${Math.round(p / q)}`],
    };
  },
  (draw) => {
    const n = draw(1, 99);
    return {
      ...{ kind: "percent", ordinary: true },
      same: [`${n}\\%`, `${n}%`, `${n} percent`, `${n}.0\\%`],
      different: [`${n + 1}\\%`, `${n / 10}`, `${n / 100}\\%`, `${n}.5\\%`],
    };
  },
  (draw) => {
    const [a, r] = [draw(2, 9), pick(() => draw(0, 99) / 100, [2, 3, 5, 7])];
    return {
      ...{ kind: "root", ordinary: true },
      same: [
        `${a}\\sqrt{${r}}`,
        `\\sqrt{${a * a * r}}`,
        `${a} \\cdot \\sqrt{${r}}`,
        `\\sqrt{${r}} \\cdot ${a}`,
        `\\frac{${a * r}}{\\sqrt{${r}}}`,
        `${a}*sqrt(${r})`,
        `${a}√${r}`,
      ],
      different: [
        `${r}\\sqrt{${a * a + 1}}`,
        `\\sqrt{${a * r}}`,
        `-${a}\\sqrt{${r}}`,
        `${(a * Math.sqrt(r)).toFixed(3)}`,
        `${a}+\\sqrt{${r}}`,
      ],
    };
  },
  (draw) => {
    const [a, b] = [draw(1, 12), draw(2, 9)];
    return {
      ...{ kind: "pi", ordinary: true },
      same: [
        `\\frac{${a}\\pi}{${b}}`,
        `\\frac{${a}}{${b}}\\pi`,
        `${a}\\pi/${b}`,
        `${a}π/${b}`,
        `\\frac{${2 * a}\\pi}{${2 * b}}`,
        `${a}*pi/${b}`,
      ],
      different: [
        `\\frac{${a}\\pi}{${b + 1}}`,
        `-\\frac{${a}\\pi}{${b}}`,
        `\\frac{${a}}{${b}}`,
        `${((a * Math.PI) / b).toFixed(4)}`,
        `\\frac{${a}\\pi^2}{${b}}`,
      ],
    };
  },
  (draw) => {
    const [a, b] = [draw(1, 9), draw(1, 9)];
    return {
      ...{ kind: "polynomial", ordinary: true },
      same: [
        `x^2 + ${a + b}x + ${a * b}`,
        `(x+${a})(x+${b})`,
        `${a * b} + ${a + b}x + x^2`,
        `(x + ${b})(x + ${a})`,
        `x(x+${a + b}) + ${a * b}`,
        `x^2+${a + b}*x+${a * b}`,
      ],
      different: [
        `x^2 - ${a + b}x + ${a * b}`,
        `x^2 + ${a + b}x - ${a * b}`,
        `(x-${a})(x-${b})`,
        `x^2 + ${a * b}`,
        `y^2 + ${a + b}y + ${a * b}`,
        `x^3 + ${a + b}x + ${a * b}`,
      ],
    };
  },
  (draw) => {
    const [m, b] = [draw(2, 9), draw(1, 9)];
    return {
      ...{ kind: "line", ordinary: true },
      same: [`y = ${m}x + ${b}`, `y=${m}x+${b}`, `${m}x - y + ${b} = 0`, `y - ${b} = ${m}x`, `y = ${b} + ${m}x`],
      different: [`y = ${m}x - ${b}`, `y = ${m + 1}x + ${b}`, `x = ${m}y + ${b}`, `${b}`, `y = ${m}x`],
    };
  },
  (draw) => {
    const [a, b] = [draw(-9, 9), draw(10, 20)];
    return {
      ...{ kind: "interval", ordinary: true },
      same: [
        `[${a}, ${b})`,
        `[${a},${b})`,
        `\\left[${a}, ${b}\\right)`,
        `x \\in [${a}, ${b})`,
        `${a} \\le x < ${b}`,
        `${b} > x \\ge ${a}`,
      ],
      different: [
        `(${a}, ${b})`,
        `[${a}, ${b}]`,
        `[${b}, ${a})`,
        `[${a}, ${b + 1})`,
        `${a} < x < ${b}`,
        `${a}, ${b}`,
        `\\{${a}, ${b}\\}`,
      ],
    };
  },
  (draw) => {
    const a = draw(-9, 9);
    return {
      ...{ kind: "ray", ordinary: true },
      same: [
        `(${a}, \\infty)`,
        `(${a},\\infty)`,
        `x > ${a}`,
        `${a} < x`,
        `\\left(${a}, +\\infty\\right)`,
        `x \\in (${a}, \\infty)`,
        `(${a}, ∞)`,
      ],
      different: [`[${a}, \\infty)`, `x < ${a}`, `(-\\infty, ${a})`, `x \\ge ${a}`, `(${a + 1}, \\infty)`, `${a}`],
    };
  },
  (draw) => {
    const [a, b] = [draw(-9, 0), draw(1, 9)];
    return {
      ...{ kind: "union", ordinary: true },
      same: [
        `(-\\infty, ${a}) \\cup (${b}, \\infty)`,
        `(${b}, \\infty) \\cup (-\\infty, ${a})`,
        `x < ${a} \\text{ or } x > ${b}`,
        `(-∞, ${a}) ∪ (${b}, ∞)`,
      ],
      different: [
        `(-\\infty, ${a}] \\cup (${b}, \\infty)`,
        `(${a}, ${b})`,
        `(-\\infty, ${a})`,
        `x > ${b}`,
        `x > ${a} \\text{ or } x < ${b}`,
      ],
    };
  },
  (draw) => {
    const [a, b] = [draw(-9, 9), draw(10, 20)];
    return {
      ...{ kind: "point", ordinary: true },
      same: [
        `(${a}, ${b})`,
        `(${a},${b})`,
        `\\left(${a}, ${b}\\right)`,
        `(x, y) = (${a}, ${b})`,
        `x = ${a}, y = ${b}`,
        `(${a}.0, \\frac{${2 * b}}{2})`,
      ],
      different: [
        `(${b}, ${a})`,
        `(${a}, ${b}, 0)`,
        `(${a}, ${b + 1})`,
        `(${-a - 1}, ${b})`,
        `\\{${a}, ${b}\\}`,
        `x = ${b}, y = ${a}`,
        `${a}`,
      ],
    };
  },
  (draw) => {
    const [a, b, c] = [draw(-9, 0), draw(1, 9), draw(10, 20)];
    return {
      ...{ kind: "list", ordinary: true },
      same: [
        `${a}, ${b}, ${c}`,
        `${c}, ${a}, ${b}`,
        `\\{${a}, ${b}, ${c}\\}`,
        `x = ${a}, x = ${b}, x = ${c}`,
        `${a}, ${b} \\text{ and } ${c}`,
        `x = ${a}, ${b}, ${c}`,
        `${a},${b},${c}`,
      ],
      different: [
        `${a}, ${b}`,
        `${a}, ${b}, ${c}, 50`,
        `${a}, ${b}, ${c + 1}`,
        `(${a}, ${b}, ${c})`,
        `${a}, ${a}, ${c}`,
        `${c}`,
      ],
    };
  },
  (draw) => {
    const [a, r] = [draw(1, 9), pick(() => draw(0, 99) / 100, [2, 3, 5, 7])];
    return {
      ...{ kind: "plus or minus", ordinary: true },
      same: [
        `${a} \\pm \\sqrt{${r}}`,
        `${a} + \\sqrt{${r}}, ${a} - \\sqrt{${r}}`,
        `x = ${a} \\pm \\sqrt{${r}}`,
        `x = ${a} - \\sqrt{${r}} \\text{ or } x = ${a} + \\sqrt{${r}}`,
      ],
      different: [`${a} + \\sqrt{${r}}`, `${a} \\pm \\sqrt{${r + 1}}`, `-${a} \\pm \\sqrt{${r}}`, `${a}`],
    };
  },
  (draw) => {
    const [a, b] = [draw(2, 9), draw(2, 9)];
    return {
      ...{ kind: "algebraic fraction", ordinary: true },
      same: [
        `\\frac{${a}x}{x+${b}}`,
        `${a}x/(x+${b})`,
        `\\frac{${2 * a}x}{2x+${2 * b}}`,
        `${a} - \\frac{${a * b}}{x+${b}}`,
      ],
      different: [`\\frac{${a}x}{x-${b}}`, `${a}x/x+${b}`, `\\frac{${a}}{x+${b}}`, `\\frac{x+${b}}{${a}x}`],
    };
  },
  (draw) => {
    const [a, u] = [
      draw(2, 90),
      pick(
        () => draw(0, 99) / 100,
        [
          ["cm", "centimeters"],
          ["m", "meters"],
          ["kg", "kilograms"],
          ["minutes", "min"],
          ["miles", "mi"],
        ],
      ),
    ];
    return {
      ...{ kind: "unit", ordinary: true },
      same: [`${a} \\text{ ${u[0]}}`, `${a}\\,\\mathrm{${u[0]}}`, `${a} ${u[1]}`, `${a}~\\text{${u[0]}}`],
      different: [`${a + 1} \\text{ ${u[0]}}`, `${a} \\text{ hours}`, `\\frac{1}{${a}} \\text{ ${u[0]}}`],
    };
  },
  (draw) => {
    const [a, b] = [draw(2, 9), draw(1, 3)];
    return {
      ...{ kind: "power", ordinary: true },
      same: [
        `${a} \\times 10^{${b}}`,
        `${a * 10 ** b}`,
        `${a} \\cdot 10^${b}`,
        `${a}e${b}`,
        `${a * 10} \\times 10^{${b - 1}}`,
      ],
      different: [
        `${a} \\times 10^{${b + 1}}`,
        `${a}`,
        `10^{${b}}`,
        `${a}^{${b + 1}}`.replace(/^8\^\{4\}$/, "7"),
        `${a} \\times 10^{-${b}}`,
      ],
    };
  },
  (draw) => {
    const word = pick(() => draw(0, 99) / 100, ["Monday", "Evelyn", "even", "Yes", "parabola", "isosceles", "True"]);
    return {
      ...{ kind: "word", ordinary: true },
      same: [`\\text{${word}}`, word, word.toLowerCase(), `\\textbf{${word}}`, `\\mathrm{${word}}`],
      different: [`\\text{not ${word}}`, "Friday", `${word} or odd`, "No", word.slice(1)],
    };
  },
  (draw) => {
    const [a, b] = [draw(1, 9), draw(2, 9)];
    return {
      ...{ kind: "angle", ordinary: true },
      same: [`${a * 10}^\\circ`, `${a * 10}`, `${a * 10}^{\\circ}`, `${a * 10}°`, `${a * 10} \\text{ degrees}`],
      different: [`${a * 10 + b}^\\circ`, `${a}^\\circ`, `${a * 10}^{2}`, `${a * 10}\\pi`],
    };
  },
  // Kinds that are less usual.
  (draw) => {
    const [a, b, c] = [draw(1, 9), draw(-9, -1), draw(10, 20)];
    return {
      ...{ kind: "vector", ordinary: false },
      same: [
        `\\langle ${a}, ${b}, ${c} \\rangle`,
        `\\left\\langle ${a},${b},${c}\\right\\rangle`,
        `⟨${a}, ${b}, ${c}⟩`,
        `\\langle \\frac{${2 * a}}{2}, ${b}, ${c} \\rangle`,
        `\\vec{v} = \\langle ${a}, ${b}, ${c}\\rangle`,
      ],
      different: [
        `\\langle ${b}, ${a}, ${c} \\rangle`,
        `\\langle ${a}, ${c}, ${b} \\rangle`,
        `\\langle ${a}, ${b} \\rangle`,
        `\\{${a}, ${b}, ${c}\\}`,
        `\\langle ${a}, ${b}, ${c + 1} \\rangle`,
      ],
    };
  },
  (draw) => {
    const [a, b, c, d] = [draw(1, 9), draw(10, 19), draw(20, 29), draw(30, 39)];
    const matrix = (
      one: string | number,
      two: string | number,
      three: string | number,
      four: string | number,
      name = "pmatrix",
    ) => `\\begin{${name}} ${one} & ${two} \\\\ ${three} & ${four} \\end{${name}}`;
    return {
      ...{ kind: "matrix", ordinary: false },
      same: [
        matrix(a, b, c, d),
        matrix(a, b, c, d, "bmatrix"),
        matrix(`\\frac{${2 * a}}{2}`, `${b}.0`, c, d),
        `\\begin{pmatrix}${a}&${b}\\\\${c}&${d}\\end{pmatrix}`,
        `A = ${matrix(a, b, c, d)}`,
        matrix(a, `${b - 1} + 1`, c, d),
        `\\left[\\begin{array}{cc} ${a} & ${b} \\\\ ${c} & ${d} \\end{array}\\right]`,
      ],
      different: [
        matrix(b, a, c, d),
        matrix(a, c, b, d),
        matrix(a, b, c, d + 1),
        `\\begin{pmatrix} ${a} & ${b} & ${c} & ${d} \\end{pmatrix}`,
        matrix(a, b, c, d, "vmatrix"),
        `\\begin{pmatrix} ${a} & ${b} \\end{pmatrix}`,
      ],
    };
  },
  (draw) => {
    const [a, b] = [draw(1, 9), draw(1, 9)];
    const [re, im] = [a * a - b * b, 2 * a * b];
    return {
      ...{ kind: "complex", ordinary: false },
      same: [
        `${re} + ${im}i`,
        `${im}i ${signed(re)}`,
        `(${a}+${b}i)^2`,
        `(${a} + ${b}i)(${a} + ${b}i)`,
        `z = ${re} + ${im}i`,
        `\\frac{${2 * re} + ${2 * im}i}{2}`,
        `${re} + \\sqrt{-${im * im}}`,
      ],
      different: [
        `${re} - ${im}i`,
        `${-re - 1} + ${im}i`,
        `${re} + ${im}`,
        `${im} ${signed(re)}i`.replace(`${re} + ${im}i`, "7"),
        `${re + im}`,
      ].filter((text) => text !== `${re} + ${im}i` && !(re === im && text.includes("i"))),
    };
  },
  (draw) => {
    const [n, k] = [draw(200, 2000), draw(2, 3)];
    const exact = k === 2 ? (BigInt(n) * BigInt(n - 1)) / 2n : (BigInt(n) * BigInt(n - 1) * BigInt(n - 2)) / 6n;
    return {
      ...{ kind: "binomial", ordinary: false },
      same: [
        `\\binom{${n}}{${k}}`,
        `${exact}`,
        `\\binom{${n}}{${n - k}}`,
        `\\frac{${n}!}{${k}! \\cdot ${n - k}!}`,
        `{${n} \\choose ${k}}`,
      ],
      different: [`${exact + 1n}`, `\\binom{${n}}{${k + 1}}`, `\\binom{${n + 1}}{${k}}`, `\\binom{${n}}{${n - k - 1}}`],
    };
  },
  (draw) => {
    const n = draw(20, 300);
    return {
      ...{ kind: "factorial", ordinary: false },
      same: [`${n}!`, `${n} \\cdot ${n - 1}!`, `\\frac{${n + 1}!}{${n + 1}}`],
      different: [`${n - 1}!`, `${n + 1}!`, `${n}! + 1`, `${n}`, `\\frac{1}{${n}!}`],
    };
  },
  (draw) => {
    const [a, b] = [draw(0, 9), draw(1, 8)];
    return {
      ...{ kind: "repeating decimal", ordinary: false },
      same: [
        `0.${a}\\overline{${b}}`,
        tex(a * 9 + b, 90),
        `0.${a}\\bar{${b}}`,
        `0.${a}${b}${b}${b}...`,
        `0.${a}\\dot{${b}}`,
      ],
      different: [
        `0.${a}${b}`,
        `0.${a}${b}${b}${b}${b}`,
        `0.\\overline{${a}${b === a ? b + 1 : b}}`,
        `0.${a}\\overline{${b + 1}}`,
      ],
    };
  },
  (draw) => {
    const [a, b] = [draw(2, 9), draw(2, 9)];
    return {
      ...{ kind: "unicode", ordinary: false },
      same: [
        `${a}x^2 + \\frac{1}{2}\\alpha - ${b}`,
        `${a}x² + ½α − ${b}`,
        `${a}x²+α/2−${b}`,
        `${String.fromCharCode(0xff10 + a)}x^2 + \\frac{α}{2} - ${b}`,
      ],
      different: [
        `${a}x³ + ½α − ${b}`,
        `${a}x² + ⅓α − ${b}`,
        `${a}x² + ½β − ${b}`,
        `${a}x₂ + ½α − ${b}`,
        `${a}x² + ½α + ${b}`,
      ],
    };
  },
  (draw) => {
    const [a, b] = [draw(2, 9), draw(2, 9)];
    return {
      ...{ kind: "functions", ordinary: false },
      same: [
        `${a}\\cos(${b}x)`,
        `${a}*cos(${b}*x)`,
        `${a}\\cos ${b}x`,
        `${a} \\sin\\left(${b}x + \\frac{\\pi}{2}\\right)`,
      ],
      different: [`${a}\\sin(${b}x)`, `${a}\\cos(${b + 1}x)`, `${a}\\cos ${b} x^2`, `${b + a}\\cos(${b}x)`],
    };
  },
  (draw) => {
    const [a, b] = [draw(2, 9), draw(2, 9)];
    return {
      ...{ kind: "logarithms", ordinary: false },
      same: [`\\ln ${a} + \\ln ${b}`, `\\ln(${a * b})`, `\\ln ${a * b}`, `\\frac{\\log ${a * b}}{\\log e}`],
      different: [
        `\\ln(${a + b})`,
        `\\ln ${a} \\cdot \\ln ${b}`,
        `\\log ${a * b}`,
        `\\ln ${a} - \\ln ${b}`,
        `e^{${a * b}}`,
      ],
    };
  },
  (draw) => {
    const [top, value] = pick(() => draw(0, 99) / 100, [
      ["\\arcsin 1", "\\frac{\\pi}{2}"],
      ["\\arccos(-1)", "\\pi"],
      ["\\arcsin(-1)", "-\\frac{\\pi}{2}"],
      ["\\arccos 1", "0"],
      ["\\arccos 0", "\\frac{\\pi}{2}"],
      ["\\arctan 1", "\\frac{\\pi}{4}"],
    ] as const);
    return {
      ...{ kind: "inverse functions", ordinary: false },
      same: [
        top,
        value,
        top.replace("\\arc", "a").replace(/ (.*)$/, "($1)"),
        top.replace(/\\arc(sin|cos|tan)/, "\\$1^{-1}"),
      ],
      different: [`${value} + 1`, "\\frac{\\pi}{3}", "2"],
    };
  },
  (draw) => {
    const [a, b] = [draw(2, 5) * 2, draw(2, 5) * 2 + 1];
    return {
      ...{ kind: "ratio", ordinary: false },
      same: [`${a}:${b}`, `${3 * a}:${3 * b}`, `${a} : ${b}`, `\\frac{${a}}{${b}}`],
      different: [`${b}:${a}`, `${a}:${b + 1}`, `${a}, ${b}`],
    };
  },
  (draw) => {
    const [a, b] = [draw(1, 9), draw(10, 20)];
    return {
      ...{ kind: "set of points", ordinary: false },
      same: [
        `(${a}, ${b}), (${b}, ${a})`,
        `(${b}, ${a}), (${a}, ${b})`,
        `\\{(${a}, ${b}), (${b}, ${a})\\}`,
        `(${a}, ${b}) \\text{ and } (${b}, ${a})`,
      ],
      different: [
        `(${a}, ${b})`,
        `(${a}, ${b}), (${a}, ${b})`,
        `(${a}, ${b}), (${b}, ${a + 1})`,
        `(${a}, ${b}, ${b}, ${a})`,
      ],
    };
  },
];

/** Replies that state an answer, as models write them. `answer` is LaTeX. */
const statements: ((answer: string) => string)[] = [
  (answer) => `\\boxed{${answer}}`,
  (answer) => `Adding both sides gives the result.\n\nThe final answer is $\\boxed{${answer}}$.`,
  (answer) => `The answer is **$${answer}$**.`,
  (answer) => `**Answer:** $${answer}$`,
  (answer) => `So we are done.\n\n**Final Answer: $${answer}$**`,
  (answer) => `**Final Answer**\n\n$$${answer}$$`,
  (answer) => `Answer: $${answer}$ because the other case is excluded.`,
  (answer) => `<answer>$${answer}$</answer>`,
  (answer) => `<answer>The answer is $${answer}$.</answer>`,
  (answer) => `### Final Answer\n\\[ \\boxed{${answer}} \\]`,
  (answer) => `The answer is: \\(${answer}\\).`,
  (answer) => `Step 1: there are 12 of 7.\nStep 2: halve it.\n\nTherefore, the answer is $${answer}$.`,
  (answer) => `Hence we get $${answer}$.`,
  (answer) => `Thus, the final answer is:\n\n$$\n${answer}\n$$\n`,
  (answer) => `#### ${answer}`,
  (answer) => `<think>Is it 12? \\boxed{12}</think>\n\nThe result is \\boxed{${answer}}.`,
  (answer) => `Our first guess was \\boxed{-77}. No, wait, that is wrong. It is \\boxed{${answer}}.`,
  (answer) => `The correct answer is $${answer}$, which completes the solution.`,
];

/** About `count` pairs, half of them equal. The same seed gives the same pairs. */
export function pairs(seed: number, count: number, onlyOrdinary = false): Pair[] {
  const random = uniforms(seed);
  const draw = (low: number, high: number) => randomInteger(random, low, high);
  const made: Pair[] = [];
  const seen = new Set<string>();
  for (let round = 0; made.length < count; round++) {
    const { kind, ordinary, same, different } = (values[round % values.length] as (typeof values)[number])(draw);
    if (onlyOrdinary && !ordinary) continue;
    const isSame = draw(0, 1) === 1;
    const expected = same[draw(0, 2) === 0 ? draw(0, same.length - 1) : 0]!;
    // Two thirds are bare answers in any spelling; the others are the usual spelling in a reply.
    const isReply = draw(0, 2) === 0;
    const others = isReply ? [same[0]!] : same.filter((spelling) => spelling !== expected);
    const answer = pick(random, isSame ? others : different);
    const given = isReply ? pick(random, statements)(answer) : answer;
    const pair = { given, expected, same: isSame, kind, ordinary, isReply };
    const key = JSON.stringify([given, expected]);
    if (!seen.has(key)) made.push(pair);
    seen.add(key);
  }
  return made;
}
