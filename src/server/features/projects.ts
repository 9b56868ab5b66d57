/** Moves a session to a project, a name by which sessions and usage are listed. */
import { Hono } from "hono";
import { z } from "zod";
import { clientName, jsonBody, readBody } from "../bodies.ts";
import type { Feature } from "../feature.ts";
import type { Service } from "../service.ts";

const projectSchema = z.looseObject({ project_id: clientName.min(1) });

export function projects({ context, sessions }: Service): Feature {
  const api = new Hono().put("/sessions/:session/project", async (c) => {
    const session = sessions.require(c.req.param("session"));
    session.projectId = readBody(projectSchema, await jsonBody(c)).project_id;
    context.store.saveSession(session);
    return c.body(null, 204);
  });
  return { api };
}
