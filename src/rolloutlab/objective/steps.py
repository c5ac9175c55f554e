"""Steps of a training job: how many groups each optimiser step has, and that in words."""


def plan_steps(groups: int, groups_per_step: int) -> list[int]:
    """How many groups each step has, in the order of the job; no steps where no group trains.

    There are as few steps as `groups_per_step` allows (0: one), and none is much smaller than the others, since each
    moves the weights as far as any: 9 groups of at most 8 are 5 and 4, not 8 and 1.
    """
    if not groups:
        return []
    steps = -(-groups // groups_per_step) if groups_per_step else 1
    least, larger = divmod(groups, steps)
    return [least + 1] * larger + [least] * (steps - larger)
