"""Rows of published forms, with a right and wrong completions, for the tests of forms.

The rows are made for these tests. Their keys are those of the published data sets.
"""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from typing import Any


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def fenced(code: str) -> str:
    return f"```python\n{code}\n```"


def private(tests: list[dict[str, str]], protocol: int = 4) -> str:
    """Encode tests as LiveCodeBench does."""
    pickled = pickle.dumps(json.dumps(tests), protocol)
    return base64.b64encode(zlib.compress(pickled)).decode()


ADD = fenced("print(sum(map(int, input().split())))")
SUBTRACT = fenced("a, b = map(int, input().split())\nprint(a - b)")
SUMS = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]
MORE_SUMS = [{"input": "4 5\n", "output": "9\n", "testtype": "stdin"}]
LIVE = {
    "question_title": "Add", "question_content": "Add two numbers.", "platform": "atcoder",
    "question_id": "abc1_a", "contest_id": "abc1", "contest_date": "2024-01-01T00:00:00",
    "starter_code": "", "difficulty": "easy", "public_test_cases": json.dumps(SUMS),
    "private_test_cases": private(MORE_SUMS), "metadata": "{}",
}  # fmt: skip
LIVE_FUNCTION = {
    **LIVE, "platform": "leetcode", "metadata": '{"func_name": "double"}',
    "starter_code": "class Solution:\n    def double(self, n: int, times: int) -> int:\n        ",
    "public_test_cases": '[{"input": "3\\n1", "output": "6", "testtype": "functional"}]',
    "private_test_cases": '[{"input": "3\\n2", "output": "12", "testtype": "functional"}]',
}  # fmt: skip
CODEFORCES = {
    "id": "1/A", "aliases": None, "contest_id": "1", "contest_name": "Round 1", "index": "A",
    "time_limit": 1.0, "memory_limit": 256.0, "title": "Sum", "description": "Add two numbers.",
    "input_format": "Two integers.", "output_format": "One integer.", "interaction_format": None,
    "note": None, "examples": [{"input": "1 2\n", "output": "3\n"}], "editorial": None,
    "rating": 800, "tags": ["math"], "official_tests": SUMS + MORE_SUMS, "input_mode": "stdio",
    "official_tests_complete": True, "generated_checker": None, "executable": True,
}  # fmt: skip
CODE_CONTESTS = {
    "name": "1_A. Sum", "description": "Print the sum.", "source": 2, "difficulty": 7,
    "public_tests": {"input": ["1 2\n"], "output": ["3\n"]},
    "private_tests": {"input": ["3 4\n"], "output": ["7\n"]},
    "generated_tests": {"input": ["5 6\n"], "output": ["11\n"]},
    "solutions": {"language": [], "solution": []}, "input_file": "", "output_file": "",
    "time_limit": {"seconds": 1, "nanos": 0}, "memory_limit_bytes": 256000000,
}  # fmt: skip
KODCODE = {
    "version": "v1.0", "style": "instruct", "subset": "Prefill", "question_id": "Prefill_1_I",
    "question": "Write half(n). Odd numbers are a ValueError.", "solution": "",
    "test": (
        "import pytest\nfrom solution import half\n\ndef test_even():\n    assert half(4) == 2\n\n"
        "def test_odd():\n    with pytest.raises(ValueError):\n        half(3)\n\n"
        "@pytest.mark.parametrize('n, half_n', [(6, 3), (0, 0)])\ndef test_more(n, half_n):\n"
        "    assert half(n) == pytest.approx(half_n)\n"
    ),
    "test_info": [{"function_name": "half", "parameter_list": "(n)", "docstring": ""}],
    "gpt_pass_percentage": 1.0,
}  # fmt: skip
HALF = "def half(n):\n    if n % 2:\n        raise ValueError(n)\n    return n // 2"
APPS = {
    "problem_id": 1, "question": "Add.", "solutions": "[]", "difficulty": "interview",
    "input_output": json.dumps({"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}),
    "url": "u", "starter_code": "",
}  # fmt: skip
TACO = {
    "question": "Add.", "solutions": "[]", "starter_code": "", "difficulty": "EASY",
    "input_output": json.dumps({"inputs": [[1, 2]], "outputs": [[3]], "fn_name": "add"}),
    "raw_tags": "['Math']", "tags": "['Mathematics', 'Arithmetic']", "name": "add",
    "source": "codewars", "time_limit": "2.0 seconds", "memory_limit": "256.0 megabytes",
}  # fmt: skip
SYNTHETIC = {
    "task_type": "verifiable_math",
    "prompt": "What is 3+4?",
    "problem_id": "sky_work_math_3",
}
TULU = {"messages": user("What is 3+4?"), "ground_truth": "7", "dataset": "gsm8k"}
CONSTRAINT = {
    "func_name": "validate_word_constraint", "N": 10, "quantifier": "around", "word": None,
    "keyword_list": None, "letter": None, "end_phrase": None, "original_prompt": None,
}  # fmt: skip
TULU_IF = {
    **TULU, "messages": user("Write around 10 words."), "dataset": "ifeval",
    "ground_truth": json.dumps(CONSTRAINT), "constraint_type": "Length", "constraint": "...",
}  # fmt: skip
TULU_MANY = {
    **TULU, "messages": user("Name the sea, without a comma."), "dataset": ["ifeval"], "key": "k1",
    "ground_truth": ["[{'instruction_id': ['keywords:existence', 'punctuation:no_comma'], "
                     "'kwargs': [{'keywords': ['sea']}, None]}]"],
}  # fmt: skip
VERL = {
    "data_source": "math_dapo", "prompt": user("Solve: 3+4. The last line is Answer: $Answer"),
    "ability": "MATH", "reward_model": {"ground_truth": "7", "style": "rule-lighteval/MATH_v2"},
    "extra_info": {"index": "9a9b6eb4"},
}  # fmt: skip
VERL_CODE = {
    **VERL, "data_source": "taco", "ability": "code",
    "reward_model": {"style": "rule", "ground_truth": APPS["input_output"]},
}  # fmt: skip
XLAM = {
    "id": 3, "query": "Weather in Rome for 3 days?",
    "tools": json.dumps([{
        "name": "weather", "description": "Forecast.",
        "parameters": {
            "city": {"description": "City.", "type": "str"},
            "days": {"description": "Days.", "type": "int, optional", "default": "3"},
            "tags": {"description": "Tags.", "type": "List[str], optional"},
            "where": {"description": "Place.", "type": "Dict[str, Any], optional"},
        },
    }]),
    "answers": json.dumps([{"name": "weather", "arguments": {
        "city": "Rome", "days": 3, "where": {"zip": [1, 2]},
    }}]),
}  # fmt: skip
WHERE = '"where": {"zip": [1, 2]}'
TOOLACE = {
    "system": (
        "You are an expert in composing functions. Here is a list of functions in JSON format that "
        'you can invoke:\n[{"name": "Get Trend", "description": "d", "parameters": {"type": "dict",'
        ' "properties": {"kind": {"type": "string"}, "n": {"type": "int"}}, "required": ["kind"]}}]'
        ". \nShould you decide to return the function call(s).\nPut it in the format of [func1()]"
    ),
    "conversations": [
        {"from": "user", "value": "Two gainers?"},
        {"from": "assistant", "value": '[Get Trend(kind="gainers (all)", n=2)]'},
        {"from": "tool", "value": "[]"},
        {"from": "assistant", "value": "There are none."},
    ],
}  # fmt: skip
GRID = {
    "id": "lgp-test-2x2-1", "size": "2*2", "puzzle": "There are 2 houses. ...",
    "solution": {"header": ["House", "Name", "Drink"], "rows": [["1", "Ann", "tea"], ["2", "Bob", "milk (hot)"]]},
    "created_at": "2024-07-03T21:21:29.2",
}  # fmt: skip
GRID_RIGHT = {
    "House 1": {"Name": "Ann", "Drink": "Tea"},
    "House 2": {"Name": "bob", "Drink": "milk (hot)"},
}
GRID_WRONG = {
    "House 1": {"Name": "Ann", "Drink": "Tea"},
    "House 2": {"Name": "bob", "Drink": "tea"},
}
ZEBRA = {
    "id": "lgp-mc-1", "puzzle": "There are 2 houses. ...", "question": "Who drinks milk?",
    "choices": ["Ann", "Bob"], "answer": "Bob", "created_at": "2024",
}  # fmt: skip
NUMINA = {
    "problem": "What is 3+4?", "solution": "It is $\\boxed{7}$.", "answer": "7",
    "problem_type": "Algebra", "question_type": "math-word-problem", "source": "olympiads",
    "problem_is_valid": "Yes", "solution_is_valid": "Yes", "synthetic": False,
}  # fmt: skip
OPEN_R1 = {
    **NUMINA, "uuid": "u-1", "is_reasoning_complete": [True], "generations": ["<think>"],
    "correctness_math_verify": [True], "finish_reasons": ["stop"], "correctness_count": 1,
    "messages": [*user("What is 3+4?"), {"role": "assistant", "content": "7"}],
}  # fmt: skip
NUMINA_COT = {key: OPEN_R1[key] for key in ("source", "problem", "solution", "messages")}
BIG_MATH = {
    "problem": "What is 3+4?", "answer": "7", "source": "orca_math", "llama8b_solve_rate": 0.25,
    "domain": ["Mathematics -> Algebra"],
}  # fmt: skip
SIMPLE_QA = {"metadata": "{'topic': 'Art'}", "problem": "Who?", "answer": "Ann"}
DEEPSCALER = {"problem": "What is 3+4?", "answer": "7", "solution": "3+4=7"}
WORDS = "one two three four five six seven eight nine ten"
# (form, row, verifier, right completion, wrong completions)
# The script of MBPP+ compares with a tolerance and calls the function by its name.
MBPP_PLUS = {
    "task_id": 2, "source_file": "made.ipynb", "test_imports": [],
    "code": "def shared(a, b):\n    return tuple(set(a) & set(b))",
    "prompt": "Write a function to find the shared elements of two lists.",
    "test_list": ["assert set(shared((3, 4), (4, 7))) == set((4,))"],
    "test": (
        "from math import *\n\ndef assertion(out, exp, atol):\n    if set(out) != set(exp):\n"
        "        assert out == exp, f\"out: {out}\"\n\n"
        "inputs = [[(3, 4), (4, 7)], [(1, 2), (3, 4)], [(5, 6), (6, 5)]]\n"
        "results = [(4,), (), (5, 6)]\n"
        "for i, (inp, exp) in enumerate(zip(inputs, results)):\n"
        "    assertion(shared(*inp), exp, 0)\n"
    ),
}  # fmt: skip
MBPP_SANITIZED = {
    "source_file": "made.ipynb", "task_id": 3, "prompt": "Write a function for the area of a disc.",
    "code": "import math\ndef area(r):\n    return math.pi * r * r", "test_imports": ["import math"],
    "test_list": ["assert math.isclose(area(2), 12.566370614359172)"],
}  # fmt: skip
SHARED = "def shared(a, b):\n    return tuple(set(a) & set(b))"
CASES: list[tuple[str, dict[str, Any], str, str, tuple[str, ...]]] = [
    ("LiveCodeBench", LIVE, "code", ADD, (SUBTRACT, fenced("print(3)"))),
    ("LiveCodeBench", LIVE_FUNCTION, "code",
     fenced("class Solution:\n    def double(self, n, times):\n        return n << times"),
     (fenced("class Solution:\n    def double(self, n, times):\n        return n * 2"),)),
    ("Codeforces of Open-R1", CODEFORCES, "code", ADD, (SUBTRACT, fenced("print(3)"))),
    ("CodeContests, published keys", CODE_CONTESTS, "code", ADD, (SUBTRACT, fenced("print(3)"))),
    ("KodCode", KODCODE, "code", fenced(HALF), (
        fenced("def half(n):\n    return n // 2"), fenced("def half(n):\n    return 2"),
        fenced("def half(n):\n    raise ValueError"))),
    ("APPS, TACO", APPS, "code", ADD, (SUBTRACT,)),
    ("sanitized MBPP, MBPP+", MBPP_PLUS, "code", fenced(SHARED), (
        # The listed test passes.
        fenced("def shared(a, b):\n    return (4,)"), fenced("def other(a, b):\n    return (4,)"))),
    ("sanitized MBPP, MBPP+", MBPP_SANITIZED, "code",
     fenced("def area(r):\n    return 3.141592653589793 * r ** 2"),
     (fenced("def area(r):\n    return 3 * r ** 2"),)),
    ("APPS, TACO", TACO, "code", fenced("def add(a, b):\n    return a + b"), (fenced("def add(a, b):\n    return a"),)),
    ("verifiable programs and SYNTHETIC", {**SYNTHETIC, "verification_info": '{"ground_truth": "7"}'}, "math", "\\boxed{7}", ("\\boxed{8}",)),
    ("verifiable programs and SYNTHETIC", {
        **SYNTHETIC, "problem_id": "prime_rl_code_1",
        "verification_info": json.dumps({"style": "stdin", "test_cases": APPS["input_output"]})}, "code", ADD, (SUBTRACT,)),
    ("verifiable programs and SYNTHETIC", {
        "problem": "Add.", "gold_standard_solution": ADD,
        "verification_info": {"language": "python", "test_cases": [{**one, "type": "stdin_stdout"} for one in SUMS]}}, "code", ADD, (SUBTRACT,)),
    ("verifiable programs and SYNTHETIC", {
        **SYNTHETIC, "problem_id": "ifeval_1",
        "verification_info": json.dumps({"ground_truth": json.dumps({"func_name": "validate_no_commas"})})}, "instructions", "A sea.", ("A, b.",)),
    ("verifiable programs and SYNTHETIC", {
        "prompt": "Next?", "problem_id": None, "task_type": "reasoning_gym",
        "verification_info": json.dumps({
            "ground_truth": "7", "reasoning_gym_dataset": "chain_sum",
            "reasoning_gym_entry": json.dumps({"question": "3 + 4 =", "answer": "7", "metadata": {}})})},
     "gym", "<answer>7</answer>", ("<answer>8</answer>",)),
    ("verifiable programs and SYNTHETIC", {
        "prompt": "What is printed?", "problem_id": None,
        "verification_info": json.dumps({"code_output": {"output": [1, 2]}})},
     "json_schema", '{"output": [1, 2]}', ('{"output": [2, 1]}',)),
    ("RLVR of Tulu 3", TULU, "math", "\\boxed{7}", ("\\boxed{8}",)),
    ("RLVR of Tulu 3", {**TULU, "dataset": "MATH", "ground_truth": "\\frac{1}{2}"}, "math", "\\boxed{0.5}", ("\\boxed{2}",)),
    ("RLVR of Tulu 3", TULU_IF, "instructions", WORDS, ("one", f"{WORDS} {WORDS}")),
    ("RLVR of Tulu 3", TULU_MANY, "instructions", "The sea.", ("The sea, yes.", "Water.")),
    ("RLVR of Tulu 3", {**TULU, "dataset": "code", "ground_truth": '["assert f(2) == 4", "assert f(3) == 9"]'},
     "code", fenced("def f(n):\n    return n * n"), (fenced("def f(n):\n    return 4"),)),
    ("RLVR of Tulu 3", {**TULU, "dataset": "code", "ground_truth": ["assert f(3) == 9"]},
     "code", fenced("def f(n):\n    return n * n"), (fenced("def f(n):\n    return 4"),)),
    ("RLVR of Tulu 3", {**TULU, "dataset": ["code_stdio"], "ground_truth": json.dumps(SUMS)}, "code", ADD, (SUBTRACT,)),
    ("RLVR of Tulu 3", {**TULU, "dataset": "string_matcher", "ground_truth": "Rome"}, "exact", "Rome", ("Oslo",)),
    ("verifiable programs and SYNTHETIC", {
        **SYNTHETIC, "problem_id": "code_2", "verification_info": {"language": "python", "test_cases": [
            {"type": "function_call", "fn_name": "add", "input": [1, 2], "output": [3]}]}},
     "code", fenced("def add(a, b):\n    return a + b"), (fenced("def add(a, b):\n    return a"),)),
    ("verl", VERL, "math", "3+4=7\nAnswer: 7", ("Answer: 8",)),
    ("verl", VERL_CODE, "code", ADD, (SUBTRACT,)),
    ("xLAM", XLAM, "function_calls",
     f'[{{"name": "weather", "arguments": {{"city": "Rome", "days": 3, {WHERE}}}}}]', (
         f'[{{"name": "weather", "arguments": {{"city": "Ulm", {WHERE}}}}}]',
         f'[{{"name": "weather", "arguments": {{"city": "Rome", "days": 4, {WHERE}}}}}]', "Sunny.")),
    ("ToolACE", TOOLACE, "function_calls",
     '[{"name": "Get Trend", "arguments": {"kind": "gainers (all)", "n": 2}}]',
     ('[{"name": "Get Trend", "arguments": {"kind": "losers", "n": 2}}]', "There are none.")),
    ("ZebraLogic, grids", GRID, "json_schema", json.dumps(GRID_RIGHT), (json.dumps(GRID_WRONG), "{}")),
    ("ZebraLogic, choices", ZEBRA, "choice", "The answer is B.", ("The answer is A.",)),
    ("NuminaMath-1.5, OpenR1-Math", NUMINA, "math", "\\boxed{7}", ("\\boxed{8}",)),
    ("NuminaMath-1.5, OpenR1-Math", OPEN_R1, "math", "\\boxed{7}", ("\\boxed{8}",)),
    ("NuminaMath-CoT", NUMINA_COT, "math", "\\boxed{7}", ("\\boxed{8}",)),
    ("Big-Math", BIG_MATH, "math", "\\boxed{7}", ("\\boxed{8}",)),
    ("MATH", DEEPSCALER, "math", "\\boxed{7}", ("\\boxed{8}",)),
    ("GSM8K", {"question": "3+4?", "answer": "It is.\n#### 7"}, "math", "\\boxed{7}", ("\\boxed{8}",)),
    ("IFEval", {"key": 1, "prompt": "p", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
     "instructions", "A sea.", ("A, b.",)),
]  # fmt: skip
