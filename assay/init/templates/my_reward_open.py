"""A reward. It is called once for each completion, with the row that the completion answers."""


def reward(problem, completion):
    # What the model wrote, without its reasoning.
    words = completion.answer_text.split()
    # An example: it rewards an answer of at least five words. The rows have no reference answer.
    # Their keys are in problem.spec, as problem.spec["topic"].
    return max(0.0, 1.0 - abs(len(words) - 5) / 5)  # a number from 0 to 1, or None: not judged
