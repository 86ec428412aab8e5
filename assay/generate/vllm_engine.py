"""vLLM as the generator: token ids in; token ids and log-probabilities out.

vLLM reads a model's configuration but no weights, and starts with random weights. After the first
load every tensor is verified, because a tensor that was not loaded would still be random.
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
    MissingExtra,
    ModelError,
    WorkerDied,
    cause,
    message,
)
from assay.generate.base import CompletionLog
from assay.generate.controllers import MakeController, TurnControllers
from assay.generate.engine_stats import EngineStats
from assay.generate.forward import check_close, probe_tokens, probed_ids
from assay.generate.memory import default_kv_mib
from assay.generate.oversampling import OversamplingCutoff
from assay.generate.slots import Waiting
from assay.generate.vllm_call import VllmCall, VllmClient
from assay.generate.vllm_worker import SharedMemory, WeightReceiver
from assay.model.load import saved_architectures
from assay.model.weights import Weights, fingerprint
from assay.types import Floats, Group, Problem, Prompt

# Maximum number of token ids whose log-probabilities one request returns.
MOST_IDS = 128
RECEIVER = f"{WeightReceiver.__module__}:{WeightReceiver.__name__}".replace(":", ".")


@dataclass(frozen=True)
class ModelFacts:
    """Configuration, tokenizer and other facts with which vLLM builds a model without weights on
    any machine.

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
        """Write the model's configuration and tokenizer files to a folder."""
        for name, content in self.files.items():
            (folder / name).write_bytes(content)


class VllmEngine:
    """Samples with vLLM from weights that are loaded in place; implements the generator protocol.

    The generator is not exact: vLLM's products round differently and depend on the other
    completions of a batch, so importance weights are applied to tokens. as_sent: converts weights
    to those of a plain model.
    expected: returns the expected result of `probe`; None: the caller compares the probe. marks:
    environment variables that identify vLLM's processes, which then end if this process is killed;
    None: vLLM runs inside this process. watch, make_controller, log: see `Engine`.
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
        self.make_controller: MakeController | None = None
        self.log: CompletionLog | None = None
        self.policy_version = 0
        self._facts, self._seed, self._num_slots = facts, seed, settings.slots
        self._as_sent, self._expected = as_sent, expected
        self._held = ""
        self._calls = 0
        self._memory = SharedMemory()
        self._vllm = import_vllm()
        with tempfile.TemporaryDirectory(prefix="assay-vllm-") as name:
            facts.write(Path(name))
            self.tokenizer = AutoTokenizer.from_pretrained(name)
            # The resource tracker frees the shared memory of vLLM's processes after a kill.
            # The resource tracker gets no marks, so a kill of the marked processes spares it.
            resource_tracker.ensure_running()
            with _environment(_surroundings(facts, threads, marks)):
                self._engine = self._start(name, settings)
        self._client = VllmClient(self._vllm, self._engine)

    def load_policy(self, weights: Weights) -> None:
        """Load weights for all further sampling.

        Raises WorkerDied if vLLM's weights differ from the sent weights after the load.
        """
        weights = self._as_sent(weights)
        places = self._memory.write(weights.tensors)
        # The hash of the sent tensors takes as long as vLLM's load, so both run in parallel.
        with ThreadPoolExecutor(1) as pool:
            ours = pool.submit(fingerprint, weights.tensors)
            arguments = (self._memory.path, places)
            (said,) = self._client.ask(self._engine.collective_rpc, "assay_load", args=arguments)
            self._held, self.policy_version = said["fingerprint"], weights.version
            # vLLM's prefix cache is cleared, because its keys and values belong to the old weights.
            # vLLM keeps the cache, and returns False, while a request still uses a part of it.
            if not self._client.ask(self._engine.reset_prefix_cache):
                raise WorkerDied("vLLM is stale: it keeps its prefix cache of the old weights")
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
        """Return the hash that vLLM's process has computed over the weights that it read."""
        return self._held

    def probe(self) -> Floats:
        """Return log-probabilities of fixed tokens, at the same positions as `Engine.probe`."""
        tokens = probe_tokens(self._facts.num_embedded, self._facts.context_length).tolist()
        # vLLM sends a request to its process in msgpack, which has lists but no ranges.
        ids = [*probed_ids(self._facts.num_embedded)]
        parts = [ids[n : n + MOST_IDS] for n in range(0, len(ids), MOST_IDS)]
        asked = {
            f"{end}/{n}": (tokens[: len(tokens) - end], part)
            # vLLM returns log-probabilities of chosen ids only for the next token.
            # The probe needs one request for each of its last positions, because vLLM returns
            # log-probabilities of chosen ids only for the next token.
            for end in (2, 1, 0)
            for n, part in enumerate(parts)
        }
        for name, (prompt, part) in asked.items():
            self._client.add(
                f"probe-{self.policy_version}-{name}",
                prompt,
                temperature=1.0,
                max_tokens=1,
                seed=0,
                logprob_token_ids=part,
                ignore_eos=True,
                detokenize=False,
                output_kind=self._client.output_kind(streams=False),
            )
        found: dict[str, list[float]] = {}
        while self._client.is_busy:
            for output in self._client.step():
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
        """Sample and return one group per problem, as `Engine.generate` does.

        Each request has its own seed, derived from its completion's problem, index and number of
        tokens, so a repeated step sends the same requests.
        """
        waiting = [self.admit(n, problem, sampling) for n, problem in enumerate(problems)]
        for group in waiting:
            group.begin(first_sibling, group_size, self.log)
        self.sample(waiting, sampling, on_group, cutoff)
        return [group.group() for group in waiting if group.is_finished]

    def sample(
        self,
        waiting: Sequence[Waiting],
        sampling: SamplingConfig,
        on_group: Callable[[Group], None] | None = None,
        cutoff: OversamplingCutoff | None = None,
        must_end: Callable[[int], bool] | None = None,
    ) -> None:
        """Sample the missing completions of groups from `admit`, as `Engine.sample` does."""
        self.stats = EngineStats(num_wanted=sum(group.size for group in waiting))
        self.stats.num_completions = sum(len(group.done) for group in waiting)
        self._calls += 1
        started = time.perf_counter()
        call = VllmCall(
            self._client,
            self.tokenizer,
            sampling,
            TurnControllers(self.tokenizer, sampling, waiting, self.make_controller),
            self.stats,
            eos_ids=self._facts.eos_ids,
            policy_version=self.policy_version,
            name=str(self._calls),
            streams=cutoff is not None or must_end is not None,
            log=self.log,
        )
        try:
            call.begin([one for one in waiting if one.todo], self._seed)
            while call.is_open:
                if must_end is not None and must_end(max(0, self._num_slots - call.num_open)):
                    # A controller may have ended completions before the first step.
                    for group in call.interrupt():
                        if on_group is not None:
                            on_group(group)
                    return
                ended = call.step()
                seconds = time.perf_counter() - started
                self.stats.decode_seconds = seconds - self.stats.wait_seconds
                if self.watch is not None:
                    self.watch(self.stats)
                for group in ended:
                    if on_group is not None:
                        on_group(group)
                    if cutoff is not None:
                        cutoff.ended(group)
                if cutoff is not None:
                    cutoff.tokens += call.give_up(cutoff.limit)
        finally:
            call.close()

    def sleep(self) -> None:
        """Do nothing: vLLM keeps the memory of its key-value cache between calls."""

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
                    # Weights come through shared memory, so that updates write no files.
                    load_format="dummy",
                    max_model_len=facts.context_length,
                    max_num_seqs=settings.slots,
                    kv_cache_memory_bytes=int(kv_mib * 2**20),
                    seed=0,
                    # vLLM returns log-probabilities after temperature and truncation.
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
            # For invalid settings, vLLM raises ValueError before it starts a process.
            found = f"settings that vLLM rejects ({' '.join(str(error).split())[:300]})"
            raise ModelError(message("model.path", found, "a model that vLLM can load")) from error
        except Exception as error:  # vLLM's processes may fail for any reason.
            raise WorkerDied(f"vLLM does not start: {cause(error)[:300]}") from error

    def admit(self, position: int, problem: Problem, sampling: SamplingConfig) -> Waiting:
        """Render a problem's prompt for `sample`, as `Engine.admit` does."""
        prompt, context = self.render(problem), self._facts.context_length
        return Waiting.of(position, problem, prompt, sampling.max_tokens, context)


def import_vllm() -> Any:
    """Import and return vLLM. Raises MissingExtra if vLLM is not installed."""
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
        # vLLM would bind its threads to cores that the learner and verifiers use too.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # Processes are not forked, because a fork copies the CUDA context, which cannot be used in
        # the child.
        "VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn",
    }
    # Sockets are in the folder of the marks, which is deleted after a kill of vLLM's processes.
    sockets = {} if marks is None else {"VLLM_RPC_BASE_PATH": marks["TMPDIR"]}
    return {
        **{name: os.environ.get(name, value) for name, value in wanted.items()},
        **(marks or {}),
        **sockets,
        "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(marks is not None)),
        "OMP_NUM_THREADS": str(threads),
        # Compilation is off on a CPU, because it would take longer than the time that it saves.
        "TORCHDYNAMO_DISABLE": str(int(on_cpu)),
    }


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for processes that are started in the ``with`` block."""
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
