"""DPO and PPO on the same preferences, built from verdicts on the cold start's completions."""

from assay.config.toml_text import merged
from assay.recipes.demo import MAX_TOKENS, PRESENTATION
from studies.campaign import Arm, Outcome, Panel, Study, Task, main, once
from studies.claims import Of, exceeds
from studies.pools import measured, preferences, train_reward_model, write_rows
from studies.world import SETUP, cold_started, reinforce, trained

EPOCHS = 3.0


def run_arm(task: Task) -> Outcome:
    """Train on the pairs by the method in ``task.settings["method"]``."""
    if task.settings["method"] == "dpo":
        return _dpo(task)
    rows = preferences(task, most=2)
    folder = task.shared / f"reward-model-{task.seed}"
    key = {"epochs": EPOCHS, "pairs": len(rows)}

    def make() -> dict[str, str]:
        model = train_reward_model(folder, cold_started(task), rows, task.seed, EPOCHS)
        return {"model": model}

    model = once(folder, key, make)["model"]
    learned = {"verification": {"options": {"reward_model": {"path": model}}}}
    settings = merged(task.settings, {"config": learned})
    return reinforce(Task(task.folder, task.shared, task.seed, task.quick, settings))


def _dpo(task: Task) -> Outcome:
    tree = {
        "run": {"name": "dpo", "directory": str(task.folder), "seed": task.seed, "threads": 1},
        "model": {"path": cold_started(task)},
        "data": PRESENTATION,
        "sampling": {"max_tokens": MAX_TOKENS},
        "preference": {
            "pairs": [write_rows(task.folder / "pairs.jsonl", preferences(task, most=2))],
            "method": "dpo",
            "beta": 0.1,
            "epochs": EPOCHS,
            "pairs_per_step": 32,
        },
        "optimizer": {"learning_rate": 1e-4, "warmup_steps": 5},
        "checkpoint": {"every": 1_000_000, "keep_last": 1, "keep_best": False},
    }
    result = trained(tree)
    assert result.checkpoint is not None
    return measured(task, result.checkpoint)


_LEARNED = {
    "steps": 60,
    "config": {
        "data": {"verifier": "math*0.000001 + reward_model*1.0"},
        "algorithm": {"kl_weight": 0.02, "kl_place": "reward", "kl_estimator": "k1"},
    },
}

STUDY = Study(
    name="dpo_vs_ppo",
    title="DPO and PPO on the same preferences",
    source=(
        "Xu et al. 2024, Is DPO superior to PPO for LLM alignment? (arXiv 2404.10719), section"
        " 6: PPO with a reward model trained on the same preferences beats DPO, especially on"
        " code and reasoning."
    ),
    setup=SETUP,
    run=run_arm,
    arms=(
        Arm("dpo", "beta 0.1, three epochs over the pairs", {"method": "dpo"}),
        Arm(
            "ppo",
            ("a Bradley-Terry model of the pairs, then 60 steps of PPO with this reward model"),
            merged(_LEARNED, {"method": "ppo", "config": {"algorithm": {"name": "ppo"}}}),
        ),
        Arm(
            "grpo",
            "the same reward model, with GRPO instead of PPO",
            merged(_LEARNED, {"method": "grpo", "config": {"algorithm": {"name": "grpo"}}}),
        ),
    ),
    claims=(
        exceeds("PPO beats DPO.", Of("ppo", "accuracy"), Of("dpo", "accuracy"), margin=0.02),
        exceeds("GRPO beats DPO.", Of("grpo", "accuracy"), Of("dpo", "accuracy"), margin=0.02),
    ),
    panels=(Panel("accuracy", "held-out accuracy", is_value=True),),
    columns={"accuracy": "held-out accuracy", "tokens": "tokens a completion"},
    limits=(
        "The pairs come from 960 x 8 completions of the cold start: up to two pairs per problem,"
        " each with a correct and a wrong completion. The preference pairs are therefore on-policy"
        " only at the beginning. Each method has one setting. DPO trains on no new completions;"
        " PPO and GRPO sample 60 steps of 128 completions."
    ),
    reading=(
        "None of the three methods gains accuracy from these preferences.\n"
        "\n"
        "- The cold starts solve over a quarter of the problems (0.28 in both runs).\n"
        "- PPO and GRPO fall below the cold start in nearly every seed, to means of 0.09 to 0.18."
        " PPO and GRPO fall because of their reward model. Trained on the preference pairs, the"
        " reward model separates reasoning from guessing, but hardly a correct chain from a wrong"
        " chain ([over-optimization](overoptimization.md)). PPO and GRPO optimize the wrong reward"
        " of this model.\n"
        "- The accuracy of DPO ends between 0.01 and 0.47. In most runs of DPO, *both* completions"
        " of most pairs become less likely than at the start (0.79 of the pairs on average in the"
        " first run, 0.64 in the second).\n"
        "- In both runs, PPO and GRPO have a lower mean accuracy than DPO, but DPO varies so much"
        " between seeds that nothing is decided.\n"
        "\n"
        "The paper's claim is about preferences that express the goal. This study does not test"
        " preferences that express the goal."
    ),
)

if __name__ == "__main__":
    main(STUDY)
