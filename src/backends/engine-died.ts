/** An engine that has ended of itself: nothing that it held is there any more. */
import { RunError } from "../errors.ts";

export class EngineDied extends RunError {
  override name = "EngineDied";
}
