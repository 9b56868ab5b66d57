/** The services whose official Python client worker/tracking_sidecar.py runs. */

interface Client {
  title: string;
  loginHint: string;
  /** If the service does not accept the run. */
  failedHint: string;
  /** How to send what is left, after the sidecar was stopped. */
  sendRest: (directory: string) => string;
}

const trackioHint = "run `hf auth login` or set HF_TOKEN; without TRACKIO_SPACE_ID Trackio records on this machine";

export const clients = {
  wandb: {
    title: "Weights & Biases",
    loginHint: "set WANDB_API_KEY to your key, or record without an account: WANDB_MODE=offline",
    failedHint: "WANDB_MODE=offline records without the service",
    sendRest: (directory) => `send the rest: wandb sync ${directory}`,
  },
  mlflow: {
    title: "MLflow",
    loginHint: "set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
    failedHint: "check MLFLOW_TRACKING_URI; without it MLflow records into mlflow.db in the working directory",
    sendRest: () => "metrics.jsonl has everything",
  },
  trackio: {
    title: "Trackio",
    loginHint: trackioHint,
    failedHint: trackioHint,
    sendRest: () => "metrics.jsonl has everything",
  },
} satisfies Record<string, Client>;

export type ClientName = keyof typeof clients;
