"""Refuse some verifiers, such as the trace monitor, as rewards, because they are only meant to
measure.
"""

from __future__ import annotations

from assay.errors import VerifierError, message
from assay.verify.base import resolve
from assay.verify.expression import BUILT_IN, parse_expression
from assay.verify.service import Options


def refuse_measures(expression: str, options: Options, where: str) -> None:
    """Raise VerifierError if a verifier that may only measure has a weight other than 0 in a
    reward.
    """
    for number, term in enumerate(parse_expression(expression)):
        for name in term.names:
            bare = name.partition("@")[0]
            if bare not in BUILT_IN or not (verifier := resolve(bare)).measure_only:
                continue
            weight = term.resolved(verifier.weight if number else 1.0).weight
            if weight and not options.get(bare, {}).get("as_reward"):
                accepted = f"{bare} with weight 0, as in math + {bare}*0"
                remedy = (
                    "it is a measure: paying for it teaches the policy to hide its intent "
                    f"(for a study: verification.options.{bare}.as_reward = true)"
                )
                raise VerifierError(message(where, expression, accepted, remedy))
