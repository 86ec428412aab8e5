"""Configuration: what is accepted round-trips, and what is not gets one exact line."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from assay import config
from assay.config.toml_text import apply_override
from assay.errors import ConfigError
from assay.validation import section_of

MODEL = '[model]\npath = "m"\n'
RL = MODEL + '[data]\ntrain = ["p.jsonl"]\n[rl]\n'


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "run.toml"


def complaint_of(path: Path, text: str, *overrides: str) -> str:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        config.load(path, overrides)
    return str(caught.value).replace(str(path), "run.toml")


def loaded(path: Path, text: str, *overrides: str) -> config.TrainConfig:
    path.write_text(text, encoding="utf-8")
    return config.load(path, overrides)


def test_the_smallest_file_loads(toml: Path) -> None:
    loaded_config = loaded(toml, RL)
    assert loaded_config.model.path == "m"
    assert loaded_config.data.train == ("p.jsonl",)
    assert loaded_config.rl == config.RLConfig()


def test_a_byte_order_mark_is_read_over(toml: Path) -> None:
    assert loaded(toml, "\ufeff" + RL).model.path == "m"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            RL + 'clip_high = "0,28"\n',
            "run.toml:6 rl.clip_high: unknown key; did you mean algorithm.clip_high?",
        ),
        (
            RL + '[algorithm]\nclip_high = "0,28"\n',
            'run.toml:7 algorithm.clip_high: found "0,28"; accepted: a number >= 0; '
            "write 0.28, without quotes",
        ),
        (
            RL + "steps = 0\n",
            "run.toml:6 rl.steps: found 0; accepted: a whole number >= 1 (Number of steps)",
        ),
        (
            RL + 'steps = "5"\n',
            'run.toml:6 rl.steps: found "5"; accepted: a whole number >= 1; write 5, without quotes',
        ),
        (
            RL + "steps = true\n",
            "run.toml:6 rl.steps: found true; accepted: a whole number >= 1 (Number of steps)",
        ),
        (
            RL + "steps = 2020-01-01\n",
            "run.toml:6 rl.steps: found 2020-01-01; accepted: a whole number >= 1 (Number of steps)",
        ),
        (RL + "stepz = 3\n", "run.toml:6 rl.stepz: unknown key; did you mean rl.steps?"),
        (
            RL + 'algorithm = "grpo"\n',
            "run.toml:6 rl.algorithm: unknown key; did you mean algorithm.name or another key of"
            " [algorithm]?",
        ),
        (
            RL + "[engine]\nmax_tokens_per_micro_batch = 1\n",
            "run.toml:7 engine.max_tokens_per_micro_batch: unknown key; did you mean "
            "rl.max_tokens_per_micro_batch or sft.max_tokens_per_micro_batch or "
            "preference.max_tokens_per_micro_batch or reward_model.max_tokens_per_micro_batch or "
            "pretrain.max_tokens_per_micro_batch or distill.max_tokens_per_micro_batch?",
        ),
        (
            RL + "[engine]\nzzz = 3\n",
            "run.toml:7 engine.zzz: unknown key; known keys: num_slots, max_kv_mib, threads",
        ),
        (RL + "[optimzer]\n", "run.toml:6 optimzer: unknown key; did you mean optimizer?"),
        (
            RL + '[data.template]\nname = "chat"\n',
            'run.toml:6 data.template: found a section; accepted: "chat" or "base" '
            "(``chat``: the tokenizer's chat template)",
        ),
        (
            RL.replace("[data]", '[data]\ntemplate = "chta"'),
            'run.toml:4 data.template: found "chta"; accepted: "chat" or "base"; '
            'did you mean "chat"?',
        ),
        (
            MODEL + '[data]\ntrain = "p.jsonl"\n[rl]\n',
            'run.toml:4 data.train: found "p.jsonl"; accepted: a list of text; write ["p.jsonl"]',
        ),
        (
            MODEL + '[data]\ntrain = [\n  "p.jsonl",\n  3,\n]\n[rl]\n',
            'run.toml:6 data.train[1]: found 3; accepted: text, not empty; write "3"',
        ),
        (
            "rl = true\n" + MODEL,
            "run.toml:1 rl: found true; accepted: a section; write [rl] and below it its keys: "
            + ", ".join(config.RLConfig.model_fields),
        ),
        (
            "[model]\n[rl]\n",
            "run.toml:1 model.path: missing; add path = ... to [model]: A folder in Hugging Face "
            "layout, a hub name, or a run's checkpoint",
        ),
        (
            "",
            "run.toml model: missing; add [model] with path = ...: A folder in Hugging Face "
            "layout, a hub name, or a run's checkpoint",
        ),
        (
            RL + "[optimizer]\nbetas = [0.9]\n",
            "run.toml:7 optimizer.betas: found [0.9]; accepted: a list of 2, each a number >= 0 "
            "and < 1 (Decay rates of the first and the second moment)",
        ),
        (
            RL + "[optimizer]\nlearning_rate = inf\n",
            "run.toml:7 optimizer.learning_rate: found inf; accepted: a number > 0 "
            "(Peak learning rate)",
        ),
        (
            RL + '[run]\nname = "../elsewhere"\n',
            'run.toml:7 run.name: found "../elsewhere"; accepted: one folder\'s name; '
            "set run.directory to its place",
        ),
        (
            RL + '[run]\ndevice = "tpu"\n',
            'run.toml:7 run.device: found "tpu"; accepted: "cpu", "cuda" or "cuda:1"',
        ),
        (
            RL.replace("[data]", '[data]\nprompt_template = "Q:"'),
            'run.toml:4 data.prompt_template: found "Q:"; accepted: text that holds {question}',
        ),
        (
            RL.replace("[data]", '[data]\nthink_open = "</think>"'),
            "run.toml:3 data: think_open and think_close are equal; choose two different tags",
        ),
        (
            MODEL,
            "run.toml: found no stage; accepted: exactly one of [rl], [sft], [preference], "
            "[reward_model], [pretrain], [distill] (two stages are two runs: the second starts from the first one's checkpoint)",
        ),
        (
            RL + '[sft]\ntraces = ["t.jsonl"]\n',
            "run.toml: found [rl] and [sft]; accepted: exactly one of [rl], [sft], [preference], "
            "[reward_model], [pretrain], [distill] (two stages are two runs: the second starts from the first one's checkpoint)",
        ),
        (
            MODEL + "[rl]\n",
            'run.toml data.train: missing; add train = ["problems.jsonl"] to [data]',
        ),
        (
            RL + "[sampling]\ntemperature = 0\n",
            "run.toml:7 sampling.temperature: found 0 (greedy); accepted: a number > 0 while "
            "training, or all siblings would be equal",
        ),
        (
            RL + "num_minibatches = 9\n",
            "run.toml:6 rl.num_minibatches: found 9; accepted: at most rl.num_prompts (8): "
            "groups are never separated",
        ),
        (
            RL + "[sampling]\nmax_tokens = 8\n[algorithm]\noverlong_buffer = 9\n",
            "run.toml:9 algorithm.overlong_buffer: found 9; accepted: at most "
            "sampling.max_tokens (8)",
        ),
        (
            RL + "[algorithm]\ndual_clip = 0.5\n",
            "run.toml:7 algorithm.dual_clip: found 0.5; accepted: a number > 1 (Upper bound of "
            "the ratio for completions with a negative advantage (Ye et al., 2020, equation 5))",
        ),
        (
            RL + "temperature_schedule = 3\n",
            "run.toml:6 rl.temperature_schedule: found 3; accepted: a list of [step, temperature], "
            "steps rising, as [[0, 1.2], [200, 0.8]]",
        ),
        (
            MODEL + '[sft]\ntraces = ["t.jsonl"]\n[guard]\nmax_mismatch = 0.5\n',
            "run.toml:6 guard.max_mismatch: found 0.5 in a run of [sft], which does not measure it; "
            "accepted: none; remove it",
        ),
        (
            MODEL + '[sft]\ntraces = ["t.jsonl"]\n[guard]\nmax_kl = 0.5\n',
            "run.toml:6 guard.max_kl: found 0.5 in a run of [sft], which does not measure it; "
            "accepted: none; remove it",
        ),
        (
            MODEL + '[reward_model]\nrows = ["t.jsonl"]\n[guard]\nmin_entropy = 0.5\n',
            "run.toml:6 guard.min_entropy: found 0.5 in a run of [reward_model], which does not "
            "measure it; accepted: none; remove it",
        ),
        (RL + "steps = \n", "run.toml:6 not TOML: Invalid value, at column 9"),
    ],
)
def test_a_complaint_names_place_found_accepted_and_remedy(
    toml: Path, text: str, expected: str
) -> None:
    assert complaint_of(toml, text) == expected


VERIFICATION = """
[verification.options.math]
fallback = "none"
kinds = [1, [2.5, {deep = true}]]
[verification.options."my.rewards:length"]
target = 300
[verification.schedule]
kimi_length = [[0, 0], [200, 1.5]]
"""


def test_options_and_schedules_of_verifiers_are_kept(toml: Path) -> None:
    found = loaded(toml, RL + VERIFICATION, "verification.options.math.fallback=sentence")
    assert found.verification.options == {
        "math": {"fallback": "sentence", "kinds": [1, [2.5, {"deep": True}]]},
        "my.rewards:length": {"target": 300},
    }
    assert found.verification.schedule == {"kimi_length": ((0, 0.0), (200, 1.5))}
    assert config.parse(tomllib.loads(config.dump(found))) == found


POINTS = "a list of [policy_version, multiplier], versions rising, as [[0, 0.0], [400, 1.0]]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[verification.options]\nmath = 3",
            "options.math: found 3; accepted: a table of keys and values",
        ),
        ("[verification]\noptions = 3", "options: found 3; accepted: a table for each name"),
        (
            "[verification.options.math]\nwhen = [2020-01-01]",
            "options.math.when[0]: found 2020-01-01; accepted: text, a number, true or false, a list or a table",
        ),
        ("[verification.schedule]\nx = 3", f"schedule.x: found 3; accepted: {POINTS}"),
        ("[verification.schedule]\nx = []", f"schedule.x: found []; accepted: {POINTS}"),
        (
            "[verification.schedule]\nx = [[0, 1], [0, 2]]",
            f"schedule.x: found [[0, 1], [0, 2]]; accepted: {POINTS}",
        ),
        (
            "[verification.schedule]\nx = [[0.5, 1]]",
            f"schedule.x: found [[0.5, 1]]; accepted: {POINTS}",
        ),
        (
            "[verification.schedule]\nx = [[0, nan]]",
            f"schedule.x: found [[0, nan]]; accepted: {POINTS}",
        ),
    ],
)
def test_complaints_about_options_and_schedules(toml: Path, text: str, expected: str) -> None:
    line = len((RL + text).splitlines()) - (
        "when" in text
    )  # of what stands inside a list: its table's
    assert complaint_of(toml, RL + text) == f"run.toml:{line} verification.{expected}"


def test_every_complaint_has_its_own_line(toml: Path) -> None:
    text = RL + "steps = 0\nstepz = 3\n"
    complaints = complaint_of(toml, text).splitlines()
    assert [line.split(":")[1].split(" ")[0] for line in complaints] == ["6", "7"]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["rl.stepz=3"], "--set rl.stepz: unknown key; did you mean rl.steps?"),
        (
            ["rl.steps=0"],
            "--set rl.steps: found 0; accepted: a whole number >= 1 (Number of steps)",
        ),
        (["optimzer.x=3"], "--set optimzer.x: optimzer: unknown key; did you mean optimizer?"),
        (["rl.steps"], '--set: found "rl.steps"; accepted: section.key=value, as rl.steps=20'),
        (
            ["rl..steps=3"],
            '--set: found "rl..steps=3"; accepted: section.key=value, as rl.steps=20',
        ),
        (["=3"], '--set: found "=3"; accepted: section.key=value, as rl.steps=20'),
        (
            ["rl.steps=3\nx=4"],
            '--set rl.steps: found "3\\nx=4"; accepted: a whole number >= 1 (Number of steps)',
        ),
        (
            ["data.train=p.jsonl"],
            '--set data.train: found "p.jsonl"; accepted: a list of text; write ["p.jsonl"]',
        ),
        (
            ["model.path.x=3"],
            '--set model.path.x: path: found "m"; accepted: a section, to hold the key',
        ),
        (
            ["rl.steps.x=3"],
            "--set rl.steps.x: rl.steps: found a section; accepted: a whole number >= 1 "
            "(Number of steps)",
        ),
    ],
)
def test_a_complaint_about_an_override_names_the_override(
    toml: Path, overrides: list[str], expected: str
) -> None:
    assert complaint_of(toml, RL, *overrides) == expected


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("rl.steps=20", "rl", "steps", 20),
        ("rl.steps = 20", "rl", "steps", 20),
        ("optimizer.learning_rate=1e-5", "optimizer", "learning_rate", 1e-5),
        ("checkpoint.keep_best=False", "checkpoint", "keep_best", False),
        ('data.heldout=["a", "b"]', "data", "heldout", ("a", "b")),
        ("model.path=a/b=c", "model", "path", "a/b=c"),
        ("run.name=2024", "run", "name", "2024"),
        ('run.name="2024"', "run", "name", "2024"),
        ("data.verifier=math*1.0 + think_format*0.1", "data", "verifier", None),
        ("algorithm.baseline=none", "algorithm", "baseline", "none"),
        ("model.lora={rank = 4}", "model", "lora", config.LoraConfig(rank=4)),
        ("model.lora.rank=4", "model", "lora", config.LoraConfig(rank=4)),
    ],
)
def test_an_override_is_read_as_meant(
    toml: Path, override: str, section: str, key: str, value: Any
) -> None:
    expected = override.partition("=")[2] if value is None else value
    assert getattr(getattr(loaded(toml, RL, override), section), key) == expected


def test_an_empty_override_gives_the_default_again(toml: Path) -> None:
    text = RL + "steps = 7\n[sampling]\ntop_k = 5\n"
    changed = loaded(toml, text, "rl.steps=", "sampling.top_k=")
    assert changed.rl == config.RLConfig()
    assert changed.sampling.top_k is None


def test_the_last_override_wins(toml: Path) -> None:
    changed = loaded(toml, RL, "rl.steps=3", "rl.steps=4")
    assert changed.rl is not None and changed.rl.steps == 4


def test_an_override_may_choose_the_other_stage(toml: Path) -> None:
    changed = loaded(toml, RL, "rl=", 'sft.traces=["t.jsonl"]')
    assert changed.rl is None and changed.sft is not None


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_an_unreadable_file_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    reason = "No such file or directory" if content is None else "not UTF-8 text"
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    assert str(caught.value) == f"{path}: cannot be read ({reason}); give a TOML file"


@pytest.mark.parametrize("path", [".", "a\0b"])
def test_a_folder_or_an_impossible_name_is_a_config_error(path: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        config.load(path)


def test_a_configuration_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        config.RunConfig().seed = 3  # pyright: ignore[reportAttributeAccessIssue]


def test_python_lists_are_taken_for_lists() -> None:
    assert config.DataConfig(train=["a"]).train == ("a",)  # pyright: ignore[reportArgumentType]


# Round trip: a configuration made of arbitrary values of the documented types.
positive = st.floats(1e-12, 1e12)
temperature = st.floats(0.001, 100.0)
count = st.integers(1, 65536)
natural = st.integers(1, 2**40)
rate = st.floats(0, 1)
some_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
names = st.lists(some_text, min_size=1, max_size=3).map(tuple)
models = st.builds(
    config.ModelConfig,
    path=some_text,
    dtype=st.sampled_from([None, "float32", "bfloat16"]),
    lora=st.none() | st.builds(config.LoraConfig, rank=count, alpha=positive),
)
datasets = st.builds(
    config.DataConfig,
    train=names,
    system_prompt=st.none() | st.text(st.characters(exclude_categories=["Cs"])),
    think=st.sampled_from(["off", "free", "opened", "empty"]),
    near_duplicate_overlap=rate,
    max_prompt_tokens=st.none() | natural,
)
samplings = st.builds(
    config.SamplingConfig,
    temperature=temperature,
    top_k=st.none() | natural,
    min_p=rate,
    stop=names,
)
algorithms = st.builds(
    config.AlgorithmConfig, clip_low=st.none() | positive, mask_truncated=st.none() | st.booleans()
)
configs = st.builds(
    config.TrainConfig,
    model=models,
    data=datasets,
    sampling=samplings,
    algorithm=algorithms,
    rl=st.builds(config.RLConfig, steps=natural),
)


@given(configs)
def test_dump_then_parse_is_the_same_configuration(whole: config.TrainConfig) -> None:
    assert config.parse(tomllib.loads(config.dump(whole))) == whole


def test_every_key_is_documented_and_none_is_a_default() -> None:
    rows = list(config.field_help())
    assert len({key for key, *_ in rows}) == len(rows) > 60
    for key, kind, default, description in rows:
        assert description.endswith((".", "?")), f"{key} needs a docstring that is a sentence"
        assert not re.search(r"typing|class|Annotated|\[", kind), f"{key}: {kind} is not in words"
        if default == "None":
            assert "None:" in description, f"{key}: what is None?"


def test_every_section_has_a_docstring() -> None:
    for name, field in config.TrainConfig.model_fields.items():
        section = section_of(field.annotation)
        assert section is not None and section.__doc__, name


# Whatever a file says, it is a configuration or one line a fault.
known_keys = st.sampled_from([key for key, *_ in config.field_help()])
odd_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text("a1.,-", max_size=4)
    | st.dates()
    | st.sampled_from(["chat", "0,5", "std", "1e-3", "cpu"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner),
    max_leaves=4,
)
odd_keys = known_keys | st.sampled_from(
    ["", "rl", "model", "model.lora", "zz", "rl.zz", "data.a.b"]
)


@given(st.lists(st.tuples(odd_keys, odd_values), max_size=5))
@example([("data.verifier_by_tag", {"": None})])
def test_any_tree_is_loaded_or_complained_about(pairs: list[tuple[str, Any]]) -> None:
    tree: dict[str, Any] = {"model": {"path": "m"}, "rl": {}, "data": {"train": ["p"]}}
    for key, value in pairs:
        *parents, leaf = key.split(".")
        node = tree
        for parent in parents:
            child = node.setdefault(parent, {})
            if not isinstance(child, dict):
                child = node[parent] = {}
            node = child
        node[leaf] = value
    try:
        config.parse(tree, where="run.toml")
    except ConfigError as error:
        for line in str(error).splitlines():
            assert re.match(r"run\.toml[^:]*: (found|unknown key|missing|think_)", line), line


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_override_is_applied_or_complained_about(key: str, value: str) -> None:
    tree: dict[str, Any] = {"model": {"path": "m"}, "rl": {}, "data": {"train": ["p"]}}
    for override in (f"{key}={value}", f"rl.steps={value}", f"data.verifier={value}", value):
        try:
            apply_override(tree, override, lambda name: name == "data.verifier")
        except ConfigError as error:
            assert str(error).startswith("--set")
