"""Saving and loading, and what the REST client says of runs, checkpoints and sessions."""

from __future__ import annotations

import datetime
import json
import urllib.error
import urllib.request

import numpy as np
import pytest
import tinker
from conftest import TEXT, Server, text
from tinker import types

ADAM = types.AdamParams(learning_rate=5e-3, eps=1e-8)


def datum(last: int = 50) -> types.Datum:
    return types.Datum(
        model_input=text(TEXT), loss_fn_inputs={"target_tokens": TEXT[1:] + [last], "weights": [1.0] * 8}
    )


def step(trainer: tinker.TrainingClient) -> float:
    future = trainer.forward_backward([datum()], "cross_entropy")
    trainer.optim_step(ADAM).result()
    return future.result().metrics["loss:sum"]


def test_resume(service: tinker.ServiceClient, trainer: tinker.TrainingClient):
    for _ in range(3):
        step(trainer)
    path = trainer.save_state("three").result().path
    assert path == f"tinker://{trainer.model_id}/weights/three"
    expected = [step(trainer) for _ in range(4)]

    resumed = service.create_training_client_from_state_with_optimizer(path).result()
    assert resumed.get_info().lora_rank == 4
    np.testing.assert_allclose([step(resumed) for _ in range(4)], expected, rtol=1e-5)

    fresh = service.create_training_client_from_state(path).result()
    found = [step(fresh) for _ in range(4)]
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    assert found[2] != pytest.approx(expected[2], rel=1e-4), "the optimizer must begin anew"

    trainer.load_state_with_optimizer(path).result()
    np.testing.assert_allclose([step(trainer) for _ in range(4)], expected, rtol=1e-5)
    trainer.load_state(path).result()
    np.testing.assert_allclose([step(trainer) for _ in range(4)], found, rtol=1e-5)


def test_names(trainer: tinker.TrainingClient):
    trainer.save_state("x").result()
    with pytest.raises(tinker.RequestFailedError, match="already exists"):
        trainer.save_state("x").result()
    before = trainer.save_state("y", user_metadata={"step": "1"}).result().path
    step(trainer)
    assert trainer.save_state("y", overwrite=True).result().path == before
    for name in ("a/b", "..", ""):
        with pytest.raises(tinker.RequestFailedError):
            trainer.save_state(name).result()
    with pytest.raises(tinker.RequestFailedError, match="ttl_seconds"):
        trainer.save_state("z", ttl_seconds=5).result()
    trainer.save_weights_for_sampler("x").result()
    with pytest.raises(tinker.RequestFailedError, match="already exists"):
        trainer.save_weights_for_sampler("x").result()
    step(trainer)


def test_checkpoint_listing(service: tinker.ServiceClient, trainer: tinker.TrainingClient, server: Server):
    rest = server.rest()
    path = trainer.save_state("first", ttl_seconds=7200, user_metadata={"why": "test"}).result().path
    sampler = trainer.save_weights_for_sampler("second").result().path
    first, second = rest.list_checkpoints(trainer.model_id).result().checkpoints
    assert (first.checkpoint_id, first.checkpoint_type, first.tinker_path) == ("weights/first", "training", path)
    assert first.user_metadata == {"why": "test"} and first.size_bytes > 0 and not first.public
    assert 7000 < (first.expires_at - first.time).total_seconds() <= 7200
    assert (second.checkpoint_type, second.tinker_path, second.expires_at) == ("sampler", sampler, None)

    run = rest.get_training_run(trainer.model_id).result()
    assert (run.base_model, run.lora_rank, run.is_lora, run.corrupted) == ("tiny", 4, True, False)
    assert run.last_checkpoint.tinker_path == path and run.last_sampler_checkpoint.tinker_path == sampler
    assert rest.get_training_run_by_tinker_path(sampler).result().training_run_id == trainer.model_id
    runs = rest.list_training_runs(limit=2).result()
    assert len(runs.training_runs) == 2 and runs.cursor.total_count >= 2
    everything = rest.list_user_checkpoints(limit=500).result()
    assert {path, sampler} <= {checkpoint.tinker_path for checkpoint in everything.checkpoints}

    rest.publish_checkpoint_from_tinker_path(path).result()
    assert rest.list_checkpoints(trainer.model_id).result().checkpoints[0].public
    rest.unpublish_checkpoint_from_tinker_path(path).result()
    rest.set_checkpoint_ttl_from_tinker_path(path, None).result()
    first = rest.list_checkpoints(trainer.model_id).result().checkpoints[0]
    assert not first.public and first.expires_at is None
    rest.set_checkpoint_ttl_from_tinker_path(path, 3600).result()
    assert rest.list_checkpoints(trainer.model_id).result().checkpoints[0].expires_at is not None

    copy = rest.copy_weights(path, "archive").result()
    rest.delete_checkpoint_from_tinker_path(path).result()
    rest.delete_checkpoint(trainer.model_id, "sampler_weights/second").result()
    assert rest.list_checkpoints(trainer.model_id).result().checkpoints == []
    with pytest.raises(tinker.NotFoundError):
        rest.delete_checkpoint_from_tinker_path(path).result()
    with pytest.raises(tinker.RequestFailedError, match="no checkpoint"):
        service.create_training_client_from_state(path).result()
    again = service.create_training_client_from_state(copy).result()
    assert again.get_info().lora_rank == 4


def test_user_metadata_of_a_run(service: tinker.ServiceClient, server: Server):
    made = service.create_lora_training_client("tiny", rank=2, user_metadata={"renderer": "plain"}).result()
    assert server.rest().get_training_run(made.model_id).result().user_metadata == {"renderer": "plain"}


def test_external_weights(trainer: tinker.TrainingClient, server: Server):
    rest = server.rest()
    path = trainer.save_weights_external("files").result().path
    urls = rest.get_external_weights_urls(path).result()
    assert {"adapter_config.json", "adapter_model.safetensors"} <= set(urls.urls)
    url = urls.urls["adapter_config.json"]
    with urllib.request.urlopen(url) as answer:
        assert b'"lora_alpha": 32' in answer.read()
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url.replace("signature=", "signature=0"))
    assert refused.value.code == 403
    kinds = {checkpoint.checkpoint_type for checkpoint in rest.list_checkpoints(trainer.model_id).result().checkpoints}
    assert kinds == {"external"}
    with pytest.raises(tinker.RequestFailedError, match="encrypt"):
        trainer.save_weights_external("secret", age_encryption_recipients=["age1x"]).result()


def test_sessions(server: Server):
    rest = server.rest()
    with server.service(user_metadata={"colour": "green"}) as service:
        trainer = service.create_lora_training_client("tiny", rank=2).result()
        sampler = trainer.save_weights_and_get_sampling_client().result()
        session = trainer.model_id.split(":")[0]
        found = rest.get_session(session).result()
        assert found.training_run_ids == [trainer.model_id] and len(found.sampler_ids) == 1
        assert found.user_metadata == {"colour": "green"}
        assert session in rest.list_sessions(limit=100).result().sessions
        assert rest.get_sampler(found.sampler_ids[0]).result().base_model == "tiny"
        rest.assign_session_project(session, "green-project").result()
        request = types.SessionSearchRequest(project_ids=["green-project"])
        (summary,) = rest.search_sessions(request).result().sessions
        assert (summary.session_id, summary.status.type) == (session, "active")
        assert sampler.compute_logprobs(text(TEXT)).result()[0] is None
    (summary,) = rest.search_sessions(request).result().sessions
    assert (summary.status.type, summary.status.reason.type) == ("client_finished", "success")
    with pytest.raises(RuntimeError, match="JWT"):
        rest.whoami().result()


def test_usage(trainer: tinker.TrainingClient, server: Server):
    """Calls that were answered 404: usage in tokens and bytes, and a sentence where there is nothing to give."""
    step(trainer)
    trainer.save_state("counted").result()
    sampler = trainer.save_weights_and_get_sampling_client().result()
    sampler.sample(text(TEXT), 2, types.SamplingParams(max_tokens=3, stop=[])).result()
    admin = tinker.AdminClient(base_url=server.url, api_key="tml-local")
    hour = datetime.datetime.now(datetime.timezone.utc).replace(minute=0, second=0, microsecond=0)
    # The test may run over the full hour.
    window = (hour - datetime.timedelta(hours=1), hour + datetime.timedelta(hours=2))
    session = trainer.model_id.split(":")[0]
    for client in (admin, server.rest()):
        usage = client.get_billing_usage(*window).result()
        counts = {}
        for event in usage.data:
            if event.session_id == session:
                info = event.event_info
                amount = info.count if info.type == "checkpoint" else info.token_count
                counts[info.type] = counts.get(info.type, 0) + amount
                assert (event.base_model, event.estimated_cost_usd) == ("tiny", None)
        # All trainers of these tests share a session.
        assert counts["training"] >= 8 and counts["sampling_sample"] >= 6 and counts["checkpoint"] >= 1
        assert session in usage.sessions
        stored = client.get_current_checkpoint_storage_usage().result()
        assert sum(item.size_bytes for item in stored.data) > 0
        assert stored.data[0].estimated_monthly_cost_usd is None
    with pytest.raises(tinker.BadRequestError, match="no audit log"):
        admin.get_audit_log().result()
    with pytest.raises(tinker.BadRequestError, match="no session traces"):
        server.rest().export_session_trace(session).result()


def post(server: Server, path: str, body: dict) -> dict:
    """For calls that only a newer SDK has."""
    headers = {"X-API-Key": "tml-local", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.url}/api/v1/{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def test_an_exported_adapter_is_uploaded_and_trained_on(
    service: tinker.ServiceClient, trainer: tinker.TrainingClient, server: Server
):
    """As SDK 0.39 does it."""
    step(trainer)
    expected = trainer.forward([datum()], "cross_entropy").result().metrics["loss:sum"]
    exported = trainer.save_weights_external("export").result().path
    started = post(server, "external_weights_upload_start", {"base_model": "tiny", "lora_config": {"rank": 4}})
    for file, url in server.rest().get_external_weights_urls(exported).result().urls.items():
        with urllib.request.urlopen(url) as answer:
            content = answer.read()
        with urllib.request.urlopen(urllib.request.Request(started["urls"][file], content, method="PUT")):
            pass
    path = post(server, "external_weights_upload_finish", {"upload_id": started["upload_id"]})["tinker_path"]
    found = post(server, "checkpoints/search", {"checkpoint_type": "external", "base_models": ["tiny"]})
    assert found["checkpoints"][0]["tinker_path"] == path
    for source in (path, exported):
        loaded = service.create_training_client_from_state(source).result()
        assert loaded.forward([datum()], "cross_entropy").result().metrics["loss:sum"] == pytest.approx(expected, rel=1e-5)
        scores = service.create_sampling_client(model_path=source).result().compute_logprobs(text(TEXT)).result()
        assert sum(scores[1:]) < 0
        step(loaded)
