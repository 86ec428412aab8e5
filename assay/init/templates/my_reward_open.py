"""A reward function, which Assay calls once per completion, with the completion's problem."""


def reward(problem, completion):
    # The completion without its reasoning.
    words = completion.answer_text.split()
    # This example rewards answers of about five words, because the rows have no reference answer.
    # The keys of a row are in problem.spec, such as problem.spec["topic"].
    # A reward is a number from 0 to 1, or None for a completion that is not judged.
    return max(0.0, 1.0 - abs(len(words) - 5) / 5)
