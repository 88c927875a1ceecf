"""Writes ray_traces.txt: what Ray Tune's schedulers decide on 1,300 random traces.

Run with a Python that has ray[tune] (2.60 made the file): python ray_traces.py > ray_traces.txt

A line is: scheduler, parameters, seed, decisions. The reports of a trace follow from its seed, by Walk here and in
scheduler_ray_test.cc; a decision is c (continue), s (stop), or e where the trial ended by itself.
"""

import math
from types import SimpleNamespace

from ray.tune.schedulers import AsyncHyperBandScheduler, MedianStoppingRule

WORD = (1 << 64) - 1


class Walk:
    """Reports of some trials, in random order."""

    def __init__(self, seed, max_t, nan=math.nan):
        self.state = seed
        self.nan = nan
        self.max_t = max_t
        self.steps = [0] * (3 + self.draw(18))
        self.live = list(range(len(self.steps)))

    def draw(self, size):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) & WORD
        return (self.state >> 33) % size

    def next(self):
        """Returns trial, step, value and whether the trial ends with this report."""
        trial = self.live[self.draw(len(self.live))]
        self.steps[trial] += 1 + (self.draw(7) if self.draw(4) == 0 else 0)
        value = self.nan if self.draw(40) == 0 else self.draw(1024) / 64 - 8
        ends = self.draw(40) == 0 and self.steps[trial] < self.max_t
        return trial, self.steps[trial], value, ends


def decisions(scheduler, walk, place):
    trials = [type("T", (), {"trial_id": str(i)})() for i in range(len(walk.steps))]
    controller = SimpleNamespace(get_live_trials=list)
    for number, trial in enumerate(trials):
        scheduler.on_trial_add(controller, trial)
        place(scheduler, number, trial)
    made = ""
    while walk.live and len(made) < 120:
        number, step, value, ends = walk.next()
        result = {"t": step, "m": value}
        if ends:
            scheduler.on_trial_complete(controller, trials[number], result)
            made += "e"
        else:
            made += scheduler.on_trial_result(controller, trials[number], result)[0].lower()
        if made[-1] != "c":
            walk.live.remove(number)
    return made


def asha(seed):
    pick = Walk(seed * 7919, 0)
    grace, factor = 1 + pick.draw(3), 2 + pick.draw(3)
    max_t, brackets = 10 + pick.draw(91), 1 + max(0, pick.draw(5) - 2)
    mode = ("min", "max")[pick.draw(2)]
    scheduler = AsyncHyperBandScheduler(
        time_attr="t",
        metric="m",
        mode=mode,
        max_t=max_t,
        grace_period=grace,
        reduction_factor=factor,
        brackets=brackets,
    )

    def place(scheduler, number, trial):
        scheduler._trial_info[trial.trial_id] = scheduler._brackets[number % brackets]

    return f"asha {grace} {max_t} {factor} {brackets} {mode} {seed} {decisions(scheduler, Walk(seed, max_t), place)}"


def median(seed):
    pick = Walk(seed * 7919, 0)
    grace, samples = pick.draw(6), 1 + pick.draw(5)
    mode = ("min", "max")[pick.draw(2)]
    scheduler = MedianStoppingRule(
        time_attr="t", metric="m", mode=mode, grace_period=grace, min_samples_required=samples
    )
    # No NaN: what Python's max makes of one depends on the order.
    made = decisions(scheduler, Walk(seed, 10**9, nan=0), lambda *_: None)
    return f"median {grace} {samples} 0 0 {mode} {seed} {made}"


if __name__ == "__main__":
    for seed in range(1, 1001):
        print(asha(seed))
    for seed in range(1, 301):
        print(median(seed))
