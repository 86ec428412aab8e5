"""A reward function, which Assay calls once per completion, with the completion's problem."""


def reward(problem, completion):
    # The model never sees the row's keys, except the prompt.
    answer = str(problem.spec["answer"])
    # The completion without its reasoning.
    said = completion.answer_text.strip()
    if said == answer:
        return 1.0
    # A reward is a number from 0 to 1, or None for a completion that is not judged.
    return 0.2 if answer in said else 0.0
