"""A reward. It is called once for each completion, with the row that the completion answers."""


def reward(problem, completion):
    # A key of the row; the model never sees it.
    answer = str(problem.spec["answer"])
    # What the model wrote, without its reasoning.
    said = completion.answer_text.strip()
    if said == answer:
        return 1.0
    # A number from 0 to 1, or None: not judged.
    return 0.2 if answer in said else 0.0
