/** How an outcome names a trajectory: by its role, with `#instance` where a role has several. */
export const labelOf = ({ name, instance }: { name: string; instance?: number | undefined }) =>
  instance === undefined ? name : `${name}#${instance}`;
