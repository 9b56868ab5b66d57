/** The name of a trajectory in outcomes: its role, with `#instance` if the role has several. */
export const labelOf = ({ name, instance }: { name: string; instance?: number | undefined }) =>
  instance === undefined ? name : `${name}#${instance}`;
