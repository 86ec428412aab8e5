"""Checks of a chat template: compare the tokens of training with those of the rendered template."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

from assay.data.chat import end_of_turn
from assay.data.template import TemplateFailed
from assay.evaluation.template_check.conversation import (
    ANSWERS,
    EXPRESSION,
    QUESTION,
    RESULT,
    SECOND_QUESTION,
    THOUGHTS,
    TemplateConversation,
)
from assay.evaluation.template_check.layout import TokenRow

Status = Literal["ok", "note", "failed"]
AROUND = 4
"""Number of tokens that a message quotes at the first difference of two rows."""


@dataclass(frozen=True)
class CheckLine:
    """Result of a check. line: text of the finding, with the token in question and the remedy."""

    name: str
    status: Status
    line: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {"name": self.name, "status": self.status, "line": self.line}


@dataclass(frozen=True)
class Laid:
    """The test conversation as rows of tokens, which the checks read.

    rl: one row of the whole conversation per key of `TemplateConversation.modes`: True has replies
    with reasoning, False has replies without. sft: one row of the first question and its answer per
    key, as in ``rl``. served_ids: end tokens at which a model server stops, from the model's
    configuration; None if not configured.
    """

    conversation: TemplateConversation
    rl: Mapping[bool, TokenRow]
    sft: Mapping[bool, TokenRow]
    served_ids: Sequence[int] | None = None

    @property
    def rows(self) -> list[TokenRow]:
        """All token rows: the RL rows, followed by the SFT rows."""
        return [*self.rl.values(), *self.sft.values()]

    @property
    def shown(self) -> list[TokenRow]:
        """Return the rows to display: the rows with reasoning if there are any, or else those
        without."""
        return [[*rows.values()][-1] for rows in (self.rl, self.sft)]

    @property
    def end_id(self) -> int | None:
        """Id of the end token that training appends to a reply; None if training appends no
        token."""
        return self.conversation.renderer.end_id

    @property
    def lead(self) -> str:
        """Header of a channel that the policy writes before an answer; "" without channels."""
        return self.conversation.renderer.form.lead

    @property
    def end(self) -> str:
        """Text of the end token."""
        return self.show([] if self.end_id is None else [self.end_id])

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text that the chat template rendered."""
        tokenizer = self.conversation.tokenizer
        return [int(one) for one in tokenizer.encode(text, add_special_tokens=False)]

    def show(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return str(self.conversation.tokenizer.decode(tokens, clean_up_tokenization_spaces=False))

    def answered(self, thinks: bool) -> tuple[str, str]:
        """Render the chat up to the first answer; return the text before the answer, and the
        rest."""
        reply = self.conversation.answer(thinks)
        text = self.conversation.text([*self.conversation.asked, reply], tools=False)
        start, found, rest = text.rpartition(ANSWERS[0])
        return start + found, rest

    def finished(self, thinks: bool) -> list[int]:
        """Return the template's tokens of a chat, up to the end token of the first answer."""
        text, rest = self.answered(thinks)
        # In training, a reply ends at its end token, so the comparison ends at the end token.
        # Some chat templates write a line break or an end-of-text token after the end token.
        before, end, _ = rest.partition(self.end) if self.end else ("", "", "")
        return self.encode(text + before + end if end else text)

    def difference(self, ours: Sequence[int], theirs: Sequence[int]) -> str:
        """Describe the first difference between the tokens of training and of the template; "" if
        equal."""
        pairs = enumerate(zip_longest(ours, theirs))
        place = next((n for n, (one, other) in pairs if one != other), None)
        if place is None:
            return ""
        one, other = (self.show(row[place : place + AROUND]) for row in (ours, theirs))
        same = self.show(ours) == self.show(theirs)
        text = "; the text is the same, only its tokens differ" if same else ""
        return f"token {place}: training has {one!r}, the template {other!r}{text}"


def all_checks(laid: Laid) -> list[CheckLine]:
    """Run every check of the chat template, in the order of importance."""
    prompt = laid.conversation.bare_prompt.text
    if QUESTION not in prompt:
        line = f"the template leaves the user's text out: it writes {prompt[:80]!r}; use a template"
        return [CheckLine("messages", "failed", f"{line} that takes text as content")]
    return [*_end(laid), *_masks(laid), *_prompt(laid), *_reply(laid), *_turns(laid), *_bos(laid)]


def _end(laid: Laid) -> Iterator[CheckLine]:
    """Check that the template writes the end token, that the loss covers the token, and that
    servers stop at it.
    """
    name = "end token"
    _, rest = laid.answered(False)
    if laid.end_id is None:
        line = "none: the template writes no special token behind a reply, and the tokenizer has no"
        yield CheckLine(name, "failed", f"{line} eos_token; completions never end; set eos_token")
        return
    first = laid.encode(rest.strip())[:1]
    if rest.strip() and first != [laid.end_id] and end_of_turn(laid.conversation.tokenizer) is None:
        # Sampling stops only at single tokens, and an end marker in plain text has several.
        count = len(laid.encode(rest.strip()))
        line = f"the template ends a reply with {rest.strip()!r}, {count} tokens that are no"
        line += f" special token; training ends it with {laid.end!r}, so the template's end is"
        remedy = f"never trained on; add {rest.strip()!r} to the tokenizer as a special token"
        yield CheckLine(name, "failed", f"{line} {remedy}")
        return
    for row in laid.rows:
        ends = row.ends("sampled")
        # A call inside a reply ends without an end token, because the result follows in the reply.
        if laid.conversation.is_inline:
            ends = ends[1:]
        # A template with channels ends earlier replies with another token, which is injected.
        if laid.lead:
            ends = ends[-1:]
        for place in ends:
            token = row.tokens[place - 1]
            if token.id != laid.end_id or not token.trained:
                line = f"token {place - 1} of {row.name}: a reply ends with {token.text!r}"
                how = "trained on" if token.trained else "not trained on"
                remedy = f"{how}; expected {laid.end!r}, trained on; report it"
                yield CheckLine(name, "failed", f"{line}, {remedy}")
                return
    by = "" if rest.strip() else "; the template itself writes none"
    which = "the last reply" if laid.lead else "every reply"
    yield CheckLine(name, "ok", f"{laid.end!r} ends {which} and is trained on{by}")
    if laid.served_ids is not None and laid.end_id not in laid.served_ids:
        stops = ", ".join(repr(laid.show([one])) for one in laid.served_ids) or "nothing"
        line = f"generation_config.json stops at {stops} and not at {laid.end!r}: a server of this"
        remedy = "folder runs on; `assay model export` writes it"
        yield CheckLine("stop tokens", "note", f"{line} {remedy}")


def _masks(laid: Laid) -> Iterator[CheckLine]:
    """Check that the loss covers exactly the tokens that the policy samples."""
    name = "loss mask"
    for row in laid.rows:
        for place, token in enumerate(row.tokens):
            if token.trained != (token.kind == "sampled"):
                how = "is trained on" if token.trained else "is not trained on"
                line = (
                    f"token {place} of {row.name}: {token.text!r} ({token.kind}) {how}; report it"
                )
                yield CheckLine(name, "failed", line)
                return
        given = laid.show([token.id for token in row.tokens if not token.trained])
        said = laid.show([token.id for token in row.tokens if token.trained])
        is_rl = row.name.startswith("rl")
        written = [ANSWERS[0], *([EXPRESSION, ANSWERS[1]] if is_rl else [])]
        if is_rl and (RESULT not in given or EXPRESSION not in said):
            # A tool call without a result is no error in this check: another check reports it.
            continue
        asked = [QUESTION, *([RESULT, SECOND_QUESTION] if is_rl else [])]
        for text, held, what in (
            *((text, said, "is not trained on") for text in written),
            *((text, given, "is trained on") for text in asked),
        ):
            if text not in held:
                yield CheckLine(name, "failed", f"{row.name}: {text!r} {what}; report it")
                return
    counts = [
        f"{sum(token.trained for token in row.tokens)} of {len(row.tokens)} tokens of {row.name}"
        for row in laid.shown
    ]
    yield CheckLine(name, "ok", f"{' and '.join(counts)}; prompts and results are context only")


def _prompt(laid: Laid) -> Iterator[CheckLine]:
    """Check that the generation prompt equals the text that the chat template writes before a
    reply.
    """
    name, think = "generation prompt", laid.conversation.bare_prompt.think
    # `data.think` may append a think block to the prompt that the template does not write.
    block = rf"{re.escape(think.open_tag)}\s*({re.escape(think.close_tag)}\s*)?\Z"
    prompt = re.sub(block, "", laid.conversation.bare_prompt.text)
    text, _ = laid.answered(False)
    if not text.startswith(prompt.rstrip()):
        ours, theirs = laid.encode(prompt), laid.encode(text)
        found = laid.difference(ours, theirs[: len(ours)])
        line = f"{found}; make the template write the same text with and without a reply"
        yield CheckLine(name, "failed", line)
        return
    empty = rf"{re.escape(think.open_tag)}\s*{re.escape(think.close_tag)}"
    lead = text[len(prompt.rstrip()) : -len(ANSWERS[0])].removeprefix(
        prompt[len(prompt.rstrip()) :]
    )
    # The check `reply` reports an empty think block before a reply, so this check ignores it.
    if re.sub(empty, "", lead).strip() not in ("", laid.lead):
        place = len(laid.conversation.bare_prompt.tokens)
        line = f"token {place}: the template writes {lead.strip()!r} before a reply, and its"
        remedy = "generation prompt does not; write it under add_generation_prompt"
        yield CheckLine(name, "failed", f"{line} {remedy}, else training starts replies without it")
        return
    channel = f"; the policy writes the channel, as in {laid.lead!r}" if laid.lead else ""
    yield CheckLine(name, "ok", f"ends with {prompt[-24:]!r}, as in training{channel}")


def _reply(laid: Laid) -> Iterator[CheckLine]:
    """Check that an SFT row has the same tokens as the template's finished chat."""
    conversation, think = laid.conversation, laid.conversation.bare_prompt.think
    for thinks, row in laid.sft.items():
        name = "thinking of a reply" if thinks else "reply"
        text, _ = laid.answered(thinks)
        theirs = laid.finished(thinks)
        # A chat template without an end token ends a reply by the first token of the next turn.
        ours = row.ids if laid.answered(thinks)[1].strip() else row.ids[: len(theirs)]
        found = laid.difference(ours, theirs)
        if thinks and THOUGHTS[1] not in text:
            line = "the template drops the reasoning of the newest reply too; training keeps it, as"
            yield CheckLine(name, "note", f"{line} the policy samples it")
        elif thinks and found:
            line = f"{found}; rows with reasoning are trained on otherwise than the template writes"
            remedy = "them: set data.think_open and data.think_close, or write it into the content"
            yield CheckLine(name, "failed" if conversation.reasons else "note", f"{line} {remedy}")
        elif found and think.close_tag in text.rpartition(QUESTION)[2]:
            line = "the template adds an empty think block before a reply without reasoning; for"
            yield CheckLine(name, "note", f"{line} rows without reasoning set data.think = 'empty'")
        elif found:
            line = f"{found}; change the template so that a reply follows its prompt directly"
            yield CheckLine(name, "failed", line)
        else:
            yield CheckLine(name, "ok", "a supervised row has the template's tokens")


def _turns(laid: Laid) -> Iterator[CheckLine]:
    """Check that the tokens of each turn are a prefix of the template's tokens for the longer
    chat."""
    conversation = laid.conversation
    first = next(iter(laid.rl.values()))
    injected = laid.show([one.id for one in first.tokens if one.kind == "injected"])
    if RESULT not in injected:
        line = f"{conversation.call_text()!r} is not read as a call"
        yield CheckLine("tool call", "failed", f"{line}; set tools.call to a format of your own")
        return
    if conversation.in_template:
        yield CheckLine("tool call", "ok", "the template's own call is read, and answered")
    else:
        yield CheckLine("tool call", "note", "the template writes none; training uses tools.call")
    broken = {thinks: _broken(laid, row, thinks) for thinks, row in laid.rl.items()}
    plain = next((one for one in broken.values() if one and not one.by_thinking), None)
    if plain:
        line = f"{plain.found}; prompt {plain.number} does not begin with the turns before it as"
        remedy = "training has them; use a template that leaves earlier turns as they are"
        yield CheckLine("prefix", "failed", f"{line} {remedy}")
    else:
        yield CheckLine("prefix", "ok", "each prompt begins with the tokens of the turns before it")
    dropped = next((one for one in broken.values() if one and one.by_thinking), None)
    name = "thinking of earlier turns"
    if dropped:
        yield CheckLine(name, *_dropped(conversation, dropped))
    elif not plain:
        yield CheckLine(name, "ok", "the template keeps it, as training does")


@dataclass(frozen=True)
class _Broken:
    """The first turn whose prompt does not begin with the tokens of the earlier turns.

    number: number of the turn, which is at least 2. found: description of the difference.
    by_thinking: only think blocks differ.
    """

    number: int
    found: str
    behind_user: bool
    by_thinking: bool = False


def _dropped(conversation: TemplateConversation, broken: _Broken) -> tuple[Status, str]:
    """Check the turns of a chat template that removes the think blocks of earlier turns."""
    behind = "a user message" if broken.behind_user else "a tool's result"
    line = f"the template drops it behind {behind} ({broken.found})"
    # Only an environment puts user messages between turns.
    # Without an environment, a template may therefore drop earlier reasoning at user messages.
    has_environment = conversation.config.tools.environment is not None
    if has_environment if broken.behind_user else conversation.reasons:
        remedy = "use a template that keeps it, or data.think = 'empty'"
        return "failed", f"{line}; training keeps it in context: {remedy}"
    if broken.behind_user:
        return "note", f"{line}, and so in prompts; the turns of an environment would keep it"
    return "note", f"{line}; training keeps it in context"


def _broken(laid: Laid, row: TokenRow, thinks: bool) -> _Broken | None:
    """Compare the tokens of training before each later reply with the messages that the template
    renders.
    """
    conversation, think = laid.conversation, laid.conversation.prompt.think
    messages = conversation.messages(thinks)
    places = [n for _, n in conversation.replies() if n > len(conversation.asked)]
    ends = row.ends("injected")[-len(places) :]
    # Text of a think block that `data.think` appends to every prompt, unlike the chat template.
    block = conversation.prompt.text[len(conversation.text(conversation.asked, True)) :]
    for number, (place, end) in enumerate(zip(places, ends, strict=True), 2):
        behind_user = messages[place - 1]["role"] == "user"
        try:
            text = conversation.text(messages[:place], True) + block
        except TemplateFailed as error:
            found = f"the template refuses message {place}: {error}"
            return _Broken(number, found, behind_user)
        found = laid.difference(row.ids[:end], laid.encode(text))
        if found:
            blocks = rf"{re.escape(think.open_tag)}.*?{re.escape(think.close_tag)}"
            # Without its reasoning, a reply in channels still has the header of its answer.
            texts = (
                re.sub(rf"\s*{blocks}\s*", laid.lead, one, flags=re.DOTALL)
                for one in (laid.show(row.ids[:end]), text)
            )
            # Templates put different line breaks around think blocks, so white space is ignored.
            ours, theirs = ("".join(one.split()) for one in texts)
            return _Broken(number, found, behind_user, by_thinking=ours == theirs)
    return None


def _bos(laid: Laid) -> Iterator[CheckLine]:
    """Check that the BOS token occurs at most once."""
    bos: Any = laid.conversation.tokenizer.bos_token_id
    ids = laid.conversation.prompt.tokens.tolist()
    # If the chat template writes BOS and the tokenizer adds BOS too, the prompt has BOS twice.
    if bos is not None and ids[:2] == [bos, bos]:
        line = f"token 1: {laid.show([bos])!r} twice; remove one from the template"
        yield CheckLine("first token", "failed", line)
    elif bos is not None:
        count = "once" if ids[:1] == [bos] else "not written by the template"
        yield CheckLine("first token", "ok", f"{laid.show([bos])!r} {count}")
    text = laid.show(ids)
    if text != laid.conversation.prompt.text:
        pairs = enumerate(zip_longest(text, laid.conversation.prompt.text))
        place = next(n for n, (one, other) in pairs if one != other)
        ours, theirs = (one[place : place + 16] for one in (text, laid.conversation.prompt.text))
        line = f"the tokens spell {ours!r} at character {place}, the template {theirs!r}"
        yield CheckLine("spelling", "note", f"{line}; the tokenizer changes text")
