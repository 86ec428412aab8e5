"""Run lm-eval's own gsm8k or mbpp on rows of a local file, without a network. Needs no Assay.

python lm_eval_run.py gsm8k --rows test.jsonl --shots train.jsonl --model FOLDER --out FOLDER
python lm_eval_run.py mbpp --rows mbpp.jsonl --model FOLDER --gguf MODEL.gguf --out FOLDER

    the environment: pip install torch==2.13.0, then
    pip install lm-eval==0.4.13 transformers accelerate tenacity
    with --gguf, the package xllamacpp too: llama.cpp serves the file, and lm-eval asks the server

The task is lm-eval's file as it ships: prompt, few-shot form, stop texts, extraction, metric. Only
the place of the rows is replaced. Rows are JSONL with the keys of the published sets. OUT gets the
task, the rows, and what lm-eval writes: its results, and every sample (``--log_samples``).

mbpp runs the programs that a model wrote. The metric that lm-eval takes from the hub (code_eval) is
replaced by the same rule here: the program with its tests runs in a process of its own for at most
``TEST_SECONDS``, in bubblewrap where it is installed, and passes where it comes to its end.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TEST_SECONDS = 6.0  # code_eval's 3 s are a thread's; here a Python starts too, on a busy machine
SHOWN = {"mbpp": (2, 3, 4)}
"""Task ids that lm-eval's prompt shows as worked examples: these rows are left out."""
_BOX = ("bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--tmpfs", "/tmp")
_BOX += ("--tmpfs", "/dev/shm", "--dev", "/dev", "--proc", "/proc")


def main() -> None:
    """Write the task, then call lm-eval's command line."""
    asked = arguments()
    asked.out.mkdir(parents=True, exist_ok=True)
    rows = write_rows(asked)
    name = write_task(asked, rows)
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_ALLOW_CODE_EVAL": "1"}
    os.environ.setdefault("HF_DATASETS_CACHE", str(asked.out / "cache"))
    with served(asked) as model:
        line = ["lm_eval", "run", *model, "--tasks", name, "--include_path", str(asked.out)]
        line += ["--output_path", str(asked.out), "--log_samples", "--confirm_run_unsafe_code"]
        line += ["--batch_size", str(asked.batch)]
        line += [] if asked.limit is None else ["--limit", str(asked.limit)]
        line += [] if asked.num_shots is None else ["--num_fewshot", str(asked.num_shots)]
        line += ["--apply_chat_template"] if asked.chat else []
        line += (
            [] if asked.max_tokens is None else ["--gen_kwargs", f"max_gen_toks={asked.max_tokens}"]
        )
        judge_programs_here()
        import torch

        torch.set_num_threads(asked.threads)
        sys.argv = line
        from lm_eval.__main__ import cli_evaluate

        cli_evaluate()


def arguments() -> argparse.Namespace:
    """Return the parsed arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=("gsm8k", "mbpp"))
    parser.add_argument("--rows", type=Path, nargs="+", required=True)
    parser.add_argument("--shots", type=Path, help="training rows that gsm8k's examples are of")
    parser.add_argument("--model", type=Path, required=True, help="Transformers folder")
    parser.add_argument("--gguf", type=Path, help="the same model, asked through llama.cpp")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--num-shots", type=int)
    parser.add_argument("--max-tokens", type=int, help="in place of lm-eval's 256")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--chat", action="store_true", help="through the chat template")
    return parser.parse_args()


def write_rows(asked: argparse.Namespace) -> Path:
    """Write the requested rows as one file, without those in the prompt. Return its path."""
    lines = [line for file in asked.rows for line in file.read_text(encoding="utf-8").splitlines()]
    shown = SHOWN.get(asked.task, ())
    kept = [line for line in lines if json.loads(line).get("task_id") not in shown]
    place = asked.out / f"{asked.task}_rows.jsonl"
    place.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    return place


def write_task(asked: argparse.Namespace, rows: Path) -> str:
    """Write lm-eval's task with the path of the rows. Return its name."""
    import lm_eval

    shipped = Path(str(lm_eval.__file__)).parent / "tasks" / asked.task / f"{asked.task}.yaml"
    files = {"test": str(rows.resolve())}
    if asked.task == "gsm8k":
        if asked.shots is None:
            sys.exit("gsm8k: --shots names the training rows that its examples are of")
        files["train"] = str(asked.shots.resolve())
    name = f"local_{asked.task}"
    task = {
        "include": str(shipped),
        "task": name,
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": files},
    }
    # JSON is YAML
    (asked.out / f"{name}.yaml").write_text(json.dumps(task, indent=1), encoding="utf-8")
    return name


@contextmanager
def served(asked: argparse.Namespace) -> Iterator[list[str]]:
    """Yield lm-eval's arguments for the model. llama.cpp serves a GGUF file within this context."""
    if asked.gguf is None:
        settings = f"pretrained={asked.model},dtype={asked.dtype}"
        yield ["--model", "hf", "--model_args", settings, "--device", "cpu"]
        return
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(asked.gguf)
    params.n_ctx, params.n_parallel, params.warmup = 4096 * asked.batch, asked.batch, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = asked.threads
    server = xllamacpp.Server(params)
    settings = {
        "base_url": f"{server.listening_address}/v1/completions",
        "model": "local",
        "tokenizer": str(asked.model),
        "tokenizer_backend": "huggingface",
        "tokenized_requests": "False",
        "num_concurrent": str(asked.batch),
        "timeout": "36000",
    }
    words = ",".join(f"{key}={value}" for key, value in settings.items())
    asked.batch = 1  # llama.cpp batches the requests that are under way itself
    yield ["--model", "local-completions", "--model_args", words]
    del server


class CodeEval:
    """pass@1 of programs, computed as by the metric code_eval."""

    def compute(
        self, references: Sequence[str], predictions: Sequence[Sequence[str]], k: Sequence[int]
    ) -> tuple[dict[str, float], dict[int, Any]]:
        """Return the share of rows whose first program passes its tests; k is [1]."""
        assert list(k) == [1]
        passed = [
            passes(f"{own[0]}\n{tests}") for tests, own in zip(references, predictions, strict=True)
        ]
        return {"pass@1": sum(passed) / len(passed)}, {}


def passes(program: str) -> bool:
    """Whether a program runs to its last line in a separate process."""
    reached = 100 + secrets.randbelow(100)  # a program that leaves early ends with another code
    box = _BOX if shutil.which("bwrap") else ()
    whole = f"{program}\nimport os\nos._exit({reached})"
    line = [*box, sys.executable, "-I", "-c", whole]
    null = subprocess.DEVNULL
    try:
        done = subprocess.run(
            line, timeout=TEST_SECONDS, check=False, stdin=null, stdout=null, stderr=null
        )
    except subprocess.TimeoutExpired:
        return False
    except ValueError:  # a program with a null byte
        return False
    return done.returncode == reached


def judge_programs_here() -> None:
    """Make lm-eval use `CodeEval` in place of code_eval from the hub."""
    import evaluate

    load: Callable[..., Any] = evaluate.load
    evaluate.load = lambda name, *rest, **named: (
        CodeEval() if name == "code_eval" else load(name, *rest, **named)
    )


if __name__ == "__main__":
    main()
