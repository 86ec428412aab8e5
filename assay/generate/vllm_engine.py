"""vLLM as the generator: token ids in; token ids and log-probabilities out.

vLLM reads a model's configuration but no weights: it starts with random weights. The first load
therefore verifies every transferred tensor, since one that was not loaded would still be random.
"""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from assay.config import EngineConfig, ModelConfig, SamplingConfig
from assay.errors import (
    ConfigError,
    DataError,
    MissingExtra,
    ModelError,
    WorkerDied,
    cause,
    message,
)
from assay.generate.engine import EngineStats
from assay.generate.finish import finished_completion
from assay.generate.forward import check_close, probe_tokens, probed_ids
from assay.generate.memory import default_kv_mib
from assay.generate.oversampling import OversamplingCutoff
from assay.generate.sampler import completion_key
from assay.generate.vllm_worker import SharedMemory, WeightReceiver
from assay.model.load import saved_architectures
from assay.model.weights import Weights, fingerprint
from assay.types import Completion, FinishReason, Floats, Group, Problem, Prompt

# Maximum number of token ids whose log-probabilities one request returns.
MOST_IDS = 128
RECEIVER = f"{WeightReceiver.__module__}:{WeightReceiver.__name__}".replace(":", ".")


@dataclass(frozen=True)
class ModelFacts:
    """The facts that vLLM needs to build a model on any machine, without weights.

    files: configuration and tokenizer files by name. num_embedded: rows of the embedding. eos_ids:
    tokens that end a completion.
    """

    files: Mapping[str, bytes]
    dtype: str
    device: str
    num_embedded: int
    context_length: int | None
    eos_ids: Sequence[int]

    @classmethod
    def of(cls, model: Any, tokenizer: Any, **rest: Any) -> ModelFacts:
        """Collect the facts of a loaded model, without its adapters."""
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            tokenizer.save_pretrained(folder)
            config = {**base.config.to_dict(), "architectures": [type(base).__name__]}
            (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
            files = {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}
        parameter = next(base.parameters())
        return cls(
            files=files,
            dtype=str(parameter.dtype).removeprefix("torch."),
            num_embedded=len(base.get_input_embeddings().weight),
            **rest,
        )

    def write(self, folder: Path) -> None:
        """Write the files to a folder."""
        for name, content in self.files.items():
            (folder / name).write_bytes(content)


class VllmEngine:
    """Samples with vLLM from weights that are loaded in place; implements the generator protocol.

    Not exact: vLLM's products round differently and depend on the other completions of a batch, so
    importance weights are applied to tokens. It cannot inject tokens during a completion: no tools
    and no thinking budgets. as_sent: converts weights to those of a plain model. expected: returns
    the expected result of `probe`; None: the caller compares. marks: environment variables that
    identify vLLM's processes, so that they are ended if this process is killed. None: vLLM runs in
    this process and takes it over. watch: see `Engine`.
    """

    exact = False
    gives_model_logprobs = False

    def __init__(
        self,
        facts: ModelFacts,
        render: Callable[[Problem], Prompt],
        *,
        settings: EngineConfig,
        seed: int,
        threads: int,
        as_sent: Callable[[Weights], Weights] = lambda weights: weights,
        expected: Callable[[], Floats] | None = None,
        marks: Mapping[str, str] | None = None,
    ) -> None:
        self.render = render
        self.stats = EngineStats()
        self.watch: Callable[[EngineStats], None] | None = None
        self.on_event: Callable[..., None] = lambda kind, **facts: None
        self.policy_version = 0
        self._facts, self._seed = facts, seed
        self._as_sent, self._expected = as_sent, expected
        self._held = ""
        self._calls = 0
        self._memory = SharedMemory()
        self._vllm = import_vllm()
        with tempfile.TemporaryDirectory(prefix="assay-vllm-") as name:
            facts.write(Path(name))
            self.tokenizer = AutoTokenizer.from_pretrained(name)
            # The tracker frees the processes' shared memory if they are killed.
            resource_tracker.ensure_running()
            with _environment(_surroundings(facts, threads, marks)):
                self._engine = self._start(name, settings)

    def load_policy(self, weights: Weights) -> None:
        """Load weights for all further sampling. Raises WorkerDied if vLLM's weights differ
        afterwards."""
        weights = self._as_sent(weights)
        places = self._memory.write(weights.tensors)
        with ThreadPoolExecutor(1) as pool:
            ours = pool.submit(fingerprint, weights.tensors)
            arguments = (self._memory.path, places)
            (said,) = self._ask(self._engine.collective_rpc, "assay_load", args=arguments)
            self._engine.reset_prefix_cache()
            self._held, self.policy_version = said["fingerprint"], weights.version
            if said["other"]:
                raise WorkerDied(f"vLLM is stale: its {said['other']} differs from what was sent")
            if ours.result() != self._held:
                raise WorkerDied(
                    "vLLM is stale: its weights' fingerprint differs from the sent one"
                )
        if self._expected is not None:
            dtype = getattr(torch, self._facts.dtype)
            try:
                check_close(torch.tensor(self.probe()), torch.tensor(self._expected()), dtype)
            except ModelError as error:
                raise WorkerDied(f"vLLM is stale: on fixed tokens, {error}") from error

    def fingerprint(self) -> str:
        """Return the hash of the weights that vLLM's process read."""
        return self._held

    def probe(self) -> Floats:
        """Return log-probabilities at the last positions of the fixed tokens, as `Engine.probe`
        does."""
        tokens = probe_tokens(self._facts.num_embedded, self._facts.context_length).tolist()
        ids = probed_ids(self._facts.num_embedded)
        parts = [ids[n : n + MOST_IDS] for n in range(0, len(ids), MOST_IDS)]
        asked = {
            f"{end}/{n}": (tokens[: len(tokens) - end], part)
            for end in (2, 1, 0)
            for n, part in enumerate(parts)
        }
        for name, (prompt, part) in asked.items():
            self._add(f"probe-{self.policy_version}-{name}", prompt, self._probing(part))
        found: dict[str, list[float]] = {}
        for output in self._outputs():
            name = output.request_id.rpartition("-")[2]
            (by_token,) = output.outputs[0].logprobs
            found[name] = [by_token[token].logprob for token in asked[name][1]]
        rows = [[x for n in range(len(parts)) for x in found[f"{end}/{n}"]] for end in (2, 1, 0)]
        return np.array(rows, np.float32)

    def generate(
        self,
        problems: Sequence[Problem],
        sampling: SamplingConfig,
        group_size: int,
        first_sibling: int = 0,
        on_group: Callable[[Group], None] | None = None,
        cutoff: OversamplingCutoff | None = None,
    ) -> list[Group]:
        """Sample and return one group per problem, as `Engine.generate` does; all groups are
        returned.

        Each completion is requested with its own seed, derived from its problem and index, so a
        repeated step sends the same requests. Raises ConfigError if thinking limits are configured.
        """
        prompts = [self._prompt(problem, sampling) for problem in problems]
        stats = self.stats = EngineStats(num_wanted=len(problems) * group_size)
        started = time.perf_counter()
        asked: dict[str, tuple[int, int]] = {}
        self._calls += 1
        for place, (problem, prompt) in enumerate(zip(problems, prompts, strict=True)):
            for number in range(group_size):
                # vLLM identifies requests by name, so names must not repeat between calls.
                name = f"{self._calls}-{place}-{number}"
                asked[name] = place, number
                key = completion_key(self._seed, problem.id, problem.draw, first_sibling + number)
                params = self._sampling(sampling, len(prompt.tokens), key)
                self._add(name, prompt.tokens.tolist(), params)
        done: list[dict[int, Completion]] = [{} for _ in problems]
        groups: dict[int, Group] = {}
        for output in self._outputs():
            place, number = asked[output.request_id]
            problem, prompt = problems[place], prompts[place]
            name = f"{problem.group_id}/{first_sibling + number}"
            one = self._completion(name, prompt, output.outputs[0], sampling)
            done[place][number] = one
            stats.num_completions += 1
            stats.tokens += len(one.tokens)
            stats.decode_seconds = time.perf_counter() - started
            if len(done[place]) == group_size:
                siblings = tuple(done[place][n] for n in range(group_size))
                groups[place] = Group(problem, prompt, siblings)
                if on_group is not None:
                    on_group(groups[place])
        return [groups[place] for place in range(len(problems))]

    def sleep(self) -> None:
        """Do nothing: vLLM retains its key-value cache."""

    def close(self) -> None:
        """Shut vLLM down."""
        self._engine.engine_core.shutdown()
        self._memory.close()

    def _start(self, folder: str, settings: EngineConfig) -> Any:
        facts = self._facts
        kv_mib = settings.max_kv_mib or default_kv_mib(torch.device(facts.device))
        try:
            return self._vllm.LLMEngine.from_engine_args(
                self._vllm.EngineArgs(
                    model=folder,
                    tokenizer=folder,
                    dtype=facts.dtype,
                    load_format="dummy",
                    max_model_len=facts.context_length,
                    max_num_seqs=settings.slots,
                    kv_cache_memory_bytes=int(kv_mib * 2**20),
                    seed=0,
                    logprobs_mode="processed_logprobs",
                    max_logprobs=MOST_IDS,
                    enable_prefix_caching=True,
                    worker_extension_cls=RECEIVER,
                    distributed_executor_backend="uni",
                    enforce_eager=facts.device == "cpu",
                    disable_log_stats=True,
                )
            )
        except ValueError as error:
            # vLLM rejects its settings before it starts a process.
            found = f"settings that vLLM rejects ({' '.join(str(error).split())[:300]})"
            raise ModelError(message("model.path", found, "a model that vLLM can load")) from error
        except Exception as error:  # a failure of vLLM's processes
            raise WorkerDied(f"vLLM does not start: {cause(error)[:300]}") from error

    def _prompt(self, problem: Problem, sampling: SamplingConfig) -> Prompt:
        prompt, context = self.render(problem), self._facts.context_length
        if sampling.controls_thinking(problem.effort):
            found = f"a thinking limit (sampling.think_budget, min_think) for {problem.place}"
            raise ConfigError(message("scale.generator", f'"vllm", with {found}', '"engine"'))
        if context is not None and len(prompt.tokens) >= context:
            found = f"a prompt of {len(prompt.tokens)} tokens"
            raise DataError(message(problem.place, found, f"at most {context} - 1"))
        return prompt

    def _sampling(self, sampling: SamplingConfig, num_prompt: int, key: int) -> Any:
        room = (self._facts.context_length or sampling.max_tokens + num_prompt) - num_prompt
        return self._vllm.SamplingParams(
            temperature=sampling.temperature,
            top_k=sampling.top_k or 0,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            max_tokens=min(sampling.max_tokens, room),
            # vLLM accepts seeds of 63 bits.
            seed=key >> 1,
            stop=list(sampling.stop) or None,
            include_stop_str_in_output=True,
            # The model's own end tokens are passed instead of vLLM's.
            ignore_eos=True,
            stop_token_ids=list(self._facts.eos_ids) or None,
            logprobs=0,
            detokenize=bool(sampling.stop),
            output_kind=self._vllm.sampling_params.RequestOutputKind.FINAL_ONLY,
        )

    def _probing(self, ids: Sequence[int]) -> Any:
        return self._vllm.SamplingParams(
            temperature=1.0,
            max_tokens=1,
            seed=0,
            logprob_token_ids=list(ids),
            ignore_eos=True,
            detokenize=False,
            output_kind=self._vllm.sampling_params.RequestOutputKind.FINAL_ONLY,
        )

    def _add(self, name: str, tokens: list[int], params: Any) -> None:
        prompt = self._vllm.TokensPrompt(prompt_token_ids=tokens)
        self._ask(self._engine.add_request, name, prompt, params)

    def _outputs(self) -> Iterator[Any]:
        """Yield finished requests; abort the remaining ones if the caller stops iterating."""
        left = True
        try:
            while self._engine.has_unfinished_requests():
                outputs = self._ask(self._engine.step)
                self.stats.num_steps += 1
                if self.watch is not None and self.stats.num_wanted:
                    self.watch(self.stats)
                yield from outputs
            left = False
        finally:
            if left:
                names = list(self._engine.output_processor.request_states)
                self._engine.abort_request(names, internal=True)

    def _ask(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        try:
            return call(*arguments, **named)
        except Exception as error:  # third-party engine, reported in one line
            raise WorkerDied(f"vLLM: {cause(error)[:300]}; continue with --resume") from error

    def _completion(
        self, name: str, prompt: Prompt, output: Any, sampling: SamplingConfig
    ) -> Completion:
        tokens = np.array(output.token_ids, np.int32)
        pairs = zip(output.token_ids, output.logprobs, strict=True)
        logprobs = np.array([by_token[token].logprob for token, by_token in pairs], np.float32)
        # Greedy sampling has a point mass, so its log-probability is 0.
        if sampling.temperature == 0:
            logprobs = np.zeros_like(logprobs)
        return finished_completion(
            self.tokenizer,
            name,
            prompt,
            tokens,
            logprobs,
            _reason(name, output),
            sampled=np.ones(len(tokens), np.bool_),
            policy_version=self.policy_version,
        )


def _reason(name: str, output: Any) -> FinishReason:
    """Convert vLLM's finish reason."""
    if output.finish_reason == "length":
        return "length"
    if output.finish_reason == "stop":
        return "stop_string" if isinstance(output.stop_reason, str) else "eos"
    raise WorkerDied(f"vLLM gave {name} up ({output.finish_reason}); continue with --resume")


def import_vllm() -> Any:
    """Import and return vLLM. Raises MissingExtra if it is not installed."""
    if importlib.util.find_spec("vllm") is None:
        raise MissingExtra.of("vLLM", "vllm", 'scale.generator = "vllm"')
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    # Disable vLLM's usage reports.
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    import vllm  # pyright: ignore[reportMissingImports]

    return vllm


def check_vllm(config: ModelConfig) -> None:
    """Raise, before weights are read, if vLLM is missing or does not support the architecture."""
    known = import_vllm().ModelRegistry.get_supported_archs()
    names = saved_architectures(config)
    if names and not {*names} & {*known}:
        found, accepted = f"a {names[0]}, which vLLM cannot load", "a model that vLLM supports"
        remedy = 'or set scale.generator = "engine"'
        raise ModelError(message(f"model.path {config.path}", found, accepted, remedy))


def _surroundings(
    facts: ModelFacts, threads: int, marks: Mapping[str, str] | None
) -> dict[str, str]:
    """Return environment variables for vLLM's process; the user's own values take precedence."""
    on_cpu = facts.device == "cpu"
    wanted = {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn",
    }
    sockets = {} if marks is None else {"VLLM_RPC_BASE_PATH": marks["TMPDIR"]}
    return {
        **{name: os.environ.get(name, value) for name, value in wanted.items()},
        **(marks or {}),
        **sockets,
        "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(marks is not None)),
        "OMP_NUM_THREADS": str(threads),
        # On a CPU compilation would take longer than it saves.
        "TORCHDYNAMO_DISABLE": str(int(on_cpu)),
    }


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for processes started inside the context."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
