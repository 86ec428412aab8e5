"""A reward. It is called once for each completion, with the row that the completion answers."""


def reward(problem, completion):
    answer = str(problem.spec["answer"])  # a key of the row; the model never sees it
    said = completion.answer_text.strip()  # what the model wrote, without its reasoning
    if said == answer:
        return 1.0
    return 0.2 if answer in said else 0.0  # a number from 0 to 1, or None: not judged
