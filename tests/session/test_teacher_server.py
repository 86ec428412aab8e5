"""A teacher behind a server: it teaches as the one beside the policy does, or is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from judge_server import Answer, Asked
from teacher_fake import NAME, TeacherServer, said
from test_distill import ON_POLICY, SIZES, distill_tree, save_other_tokens
from test_teacher_cache import kept_tree, losses
from train_worlds import World

from assay.errors import UserError, WorkerDied
from assay.session import teacher_server
from assay.testing import save_tiny_model
from assay.training import teacher_cache as kept_module
from assay.training.api import dry_run, train

ALL = 259  # tokens of the tiny models


@pytest.fixture
def server(world: World) -> Iterator[TeacherServer]:
    save_tiny_model(world.folder / "teacher", **{**SIZES, "max_positions": 80})
    with TeacherServer(world.folder / "teacher", most=ALL) as server:
        yield server


def taught(tree: dict[str, Any], server: TeacherServer) -> dict[str, Any]:
    """Return the tree of a run with the server's teacher in place of the one beside the policy."""
    return {**tree, "teacher": {"path": NAME, "url": server.url}}


def kept(world: World, name: str, **distill: Any) -> dict[str, Any]:
    return kept_tree(world, name, keep=str(world.folder / name), **distill)


def on_policy(world: World, name: str, **distill: Any) -> dict[str, Any]:
    return distill_tree(world, distill={**ON_POLICY, **distill}, run={"name": name})


def gradient(world: World, name: str, **_: Any) -> dict[str, Any]:
    tree = distill_tree(world, run={"name": name})
    del tree["distill"]
    return {
        **tree,
        "rl": {"steps": 3, "num_prompts": 2, "group_size": 4},
        "algorithm": {"name": "on_policy_distillation"},
    }


WAYS = {"keep": kept, "on policy": on_policy, "policy gradient": gradient}
"""Each use of a teacher."""


@pytest.mark.parametrize("way", WAYS)
def test_all_tokens_are_the_teacher_beside_the_policy(
    world: World, server: TeacherServer, way: str
) -> None:
    far = train(taught(WAYS[way](world, "far", keep_top=ALL), server), quiet=True)
    near = train(WAYS[way](world, "near", keep_top=ALL), quiet=True)
    pairs = [*zip(losses(far), losses(near), strict=True)]
    assert len(pairs) > 2
    for one, other in pairs:
        for key in one.keys() & {"loss/divergence", "kl/mean", "loss/total"}:
            assert one[key] == pytest.approx(other[key], rel=1e-3, abs=1e-6), key
    assert {*pairs[0][0]} & {"loss/divergence", "kl/mean"}


@pytest.mark.parametrize("divergence", ["forward_kl", "reverse_kl", "jsd"])
def test_a_student_learns_from_the_top_k_tokens(
    world: World, server: TeacherServer, divergence: str
) -> None:
    tree = on_policy(world, "few", divergence=divergence, keep_top=16, steps=12)
    far = [row["loss/divergence"] for row in losses(train(taught(tree, server), quiet=True))]
    assert sum(far[-3:]) < sum(far[:3]) / 1.2
    assert {asked.body.get("prompt_logprobs") for asked in server.asked} == {None, 16}


def test_a_trace_is_asked_once(world: World, server: TeacherServer) -> None:
    train(taught(kept(world, "once", epochs=2), server), quiet=True)
    asked = [tuple(one.body["prompt"]) for one in server.asked if one.body]
    assert len(asked) == len({*asked}) == 11  # a probe, and ten traces


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_dies_ends_the_run_which_goes_on_to_the_same_bits(
    world: World, server: TeacherServer, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_module, "PART", 3)
    monkeypatch.setattr(teacher_server, "BACKOFF", 0.001)
    whole = train(taught(WAYS[way](world, "whole"), server), quiet=True)
    part = taught(WAYS[way](world, "part"), server)
    server.dies_after = len(server.asked) + 8
    with pytest.raises(WorkerDied) as error:
        train(part, quiet=True)
    assert str(error.value) == (
        f"teacher.url {server.url}: large at {server.url[:-3]}: HTTP 500: 'the engine is dead' (7"
        " attempts); check the server, then continue with assay train --resume RUN"
    )
    server.dies_after = None
    again = train(resume=world.folder / "runs" / "part", quiet=True)
    assert losses(again) == losses(whole)
    weights = [Path(run.checkpoint or "") / "model.safetensors" for run in (whole, again)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_key_is_sent_and_shown_nowhere(
    world: World, server: TeacherServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_SERVER_KEY", "a-key-that-is-secret")
    run = train(taught(on_policy(world, "key"), server), quiet=True).run
    assert {one.headers["authorization"] for one in server.asked} == {"Bearer a-key-that-is-secret"}
    written = [path for path in Path(run).rglob("*") if path.is_file()]
    assert not any(b"a-key-that-is-secret" in path.read_bytes() for path in written)


def test_the_dry_run_asks_the_server(world: World, server: TeacherServer) -> None:
    found = dry_run(taught(on_policy(world, "look"), server))
    assert "teacher" not in found.memory.parts
    assert f"reverse_kl, at temperature 1 from large at {server.url}" in str(found.notes)


def changed(server: TeacherServer, **choice: Any) -> None:
    tell = server.tell
    server.tell = lambda body: {**tell(body), **choice}  # type: ignore[method-assign]


def without_completions(server: TeacherServer) -> None:
    reply = server.reply
    gone = said({"detail": "Not Found"}, 404)
    server.reply = lambda asked: gone if asked.body else reply(asked)


def with_raw_logits(server: TeacherServer) -> None:
    tell = server.tell

    def raw(body: Any) -> Any:
        found = tell(body)
        for step in found["prompt_logprobs"][1:]:
            for one in step.values():
                one["logprob"] += 900.0
        return found

    server.tell = raw  # type: ignore[method-assign]


def fewer(server: TeacherServer) -> None:
    server.most = 12


def another_name(server: TeacherServer) -> None:
    def reply(asked: Asked) -> Answer:
        return said({"data": [{"id": "small"}, {"id": "other"}]})

    server.reply = reply


BAD: dict[str, tuple[Callable[[TeacherServer], None], str]] = {
    "no log-probabilities": (
        lambda server: changed(server, prompt_logprobs=None),
        "teacher.url URL: found large at HOST: a response without log-probabilities of the"
        " prompt tokens: ",
    ),
    "no completions": (
        without_completions,
        'teacher.url URL: found large at HOST: HTTP 404: \'{"detail": "Not Found"}\'; accepted: a'
        " server that returns log-probabilities of given tokens, as vLLM does (prompt_logprobs); to"
        " learn from its traces instead: assay data collect --url, then [sft]",
    ),
    "logits in their place": (
        with_raw_logits,
        "teacher.url URL: found large at HOST: probabilities that add up to more than 1 at token",
    ),
    "too few of the likeliest": (
        fewer,
        "distill.keep_top: found 16, and large at HOST: HTTP 400: 'Requested prompt logprobs of 16,"
        " which is greater than max allowed: 12'; accepted: at most the top-k that the server"
        " returns; start vLLM with --max-logprobs 16, or lower the setting",
    ),
    "another name": (
        another_name,
        "teacher.path: found 'large'; accepted: a name of teacher.url URL: small, other",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_server_that_cannot_teach_is_refused(
    world: World, server: TeacherServer, case: str
) -> None:
    spoil, words = BAD[case]
    spoil(server)
    words = words.replace("URL", server.url).replace("HOST", server.url[:-3])
    for way in (kept, on_policy):
        for start in (train, dry_run):
            with pytest.raises(UserError) as error:
                start(taught(way(world, "bad", keep_top=16), server), quiet=True)
            assert str(error.value).startswith(words) and "\n" not in str(error.value)
    assert not (world.folder / "runs").exists()


def test_a_server_of_other_tokens_is_refused(world: World) -> None:
    save_other_tokens(world.folder / "other", **{**SIZES, "max_positions": 400})
    with (
        TeacherServer(world.folder / "other", most=ALL) as server,
        pytest.raises(UserError) as error,
    ):
        train(taught(kept(world, "bad"), server), quiet=True)
    found = str(error.value).removeprefix(f"teacher.url {server.url}: found a tokenizer in which ")
    accepted = "; accepted: a teacher with the policy's tokenizer, because tokens are compared one by one; to"
    assert found.startswith(("token 65 is 'B', and not 'A'" + accepted, "token 66 is 'A', and not"))


def test_an_unreachable_server_is_named(world: World, server: TeacherServer) -> None:
    tree = taught(on_policy(world, "bad"), server)
    tree["teacher"]["url"] = "http://localhost:9/v1"
    with pytest.raises(UserError, match=r"teacher\.url http://localhost:9/v1: found large at .*"):
        train(tree, quiet=True)


def test_a_short_context_is_told_before_the_run(world: World) -> None:
    save_tiny_model(world.folder / "short", **{**SIZES, "max_positions": 32})
    with TeacherServer(world.folder / "short", most=ALL) as server:
        with pytest.raises(UserError) as error:
            train(taught(on_policy(world, "bad"), server), quiet=True)
        assert str(error.value) == (
            "teacher.path large: found a context of 31 tokens; accepted: room for a prompt (56) and"
            " 8 tokens; lower data.max_prompt_tokens or sampling.max_tokens"
        )


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a temperature": (
        {"distill": {"temperature": 2.0}},
        r"distill\.temperature: found 2; accepted: 1 with teacher\.url: a server returns log-prob",
    ),
    "a temperature of samples": (
        {"distill": None, "rl": {"steps": 1}, "sampling": {"temperature": 0.7}},
        r"sampling\.temperature: found 0\.7; accepted: 1 with teacher\.url",
    ),
    "a type": (
        {"teacher": {"dtype": "bfloat16"}},
        r'teacher\.dtype: found "bfloat16" with url; accepted: none; remove it',
    ),
    "a password": (
        {"teacher": {"url": "http://me:secret@host/v1"}},
        r"^teacher\.url: accepted: an http or https address without user name, password or key$",
    ),
    "requests of nobody": (
        {"teacher": {"url": None, "concurrency": 4}},
        r"concurrency: found 4 without url; accepted: none; remove it",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_a_server_cannot_do_is_said_first(world: World, case: str) -> None:
    changes, words = WRONG[case]
    tree = on_policy(world, "bad")
    tree["teacher"] = {"path": NAME, "url": "http://localhost:9/v1"}
    for section, values in changes.items():
        tree[section] = {**tree.get(section, {}), **(values or {})}
        tree[section] = {key: one for key, one in tree[section].items() if one is not None}
        if values is None:
            del tree[section]
    with pytest.raises(UserError, match=words) as error:
        train(tree, quiet=True)
    assert "secret" not in str(error.value) and "\n" not in str(error.value)
