/** A failed operation as its future reports it. Tinker's own clients read `error` and `category`; the rest is Hone's. */
import { z } from "zod";
import { UserError } from "../errors.ts";

export const failureSchema = z.looseObject({
  /** The message and the hint in one text. */
  error: z.string(),
  category: z.enum(["user", "server"]).catch("server"),
  code: z.string().optional().catch(undefined),
  message: z.string().optional().catch(undefined),
  hint: z.string().optional().catch(undefined),
  /** With the code "non_finite_gradient": NaN or infinite, as text. */
  grad_norm: z.string().optional().catch(undefined),
});
export type Failure = z.input<typeof failureSchema>;

/** The optimizer took no step and the gradient is gone. */
export class NonFiniteGradientError extends UserError {
  override name = "NonFiniteGradientError";
  readonly gradNorm: number;

  constructor(gradNorm: number) {
    super(`the gradient's norm is ${gradNorm}: no step was taken and the gradient was dropped`, {
      code: "non_finite_gradient",
    });
    this.gradNorm = gradNorm;
  }
}
