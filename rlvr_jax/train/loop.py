"""Training, from top to bottom: sample, verify, score, credit, update; and what goes on around it."""

import dataclasses
import pathlib
from typing import Any

import jax

from rlvr_jax.analysis import CollapseRecord
from rlvr_jax.config import EVERY_KEY, FREE, Config
from rlvr_jax.configfile import to_yaml
from rlvr_jax.distributed import from_first, is_first
from rlvr_jax.models.lora import joined
from rlvr_jax.rollout.judge import Judge, judging
from rlvr_jax.rollout.refill import Filled
from rlvr_jax.train.batches import Batches, batches_of, check_processes
from rlvr_jax.train.checkpoint import Checkpoints, was_started
from rlvr_jax.train.credits import CreditRow, credited
from rlvr_jax.train.evaluate import check_held_out, evaluate, load_evaluations, save_evaluation
from rlvr_jax.train.logs import Logs, check_logging, counting, merge, say, warn_about
from rlvr_jax.train.metrics import Phases
from rlvr_jax.train.program import Program, assemble
from rlvr_jax.train.rundir import open_run
from rlvr_jax.train.step import TrainState
from rlvr_jax.train.stop import StopRequest
from rlvr_jax.train.warmup import check_demonstrations, warm_up
from rlvr_jax.types import Mean, Metrics, Pass, Stat, Stats


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """How a run ended: whether it is complete, the steps done, and its evaluations (plain data, by step)."""

    complete: bool
    steps: int
    evaluations: dict[int, dict[str, Any]]


def fit(config: Config, until: int | None = None) -> Outcome:
    """Run a config to its end, or go on with it where its run directory exists; `until` a step, with a checkpoint there.

    Raises ValueError, before any weight is read, for what does not fit together: the mesh and the batch, a prompt
    limit and the model's positions, a config that differs from the run's in what must not change.

    Several processes all call it, inside `distributed.joined`, with one run directory that each of them sees.
    """
    config.check_training()
    check_demonstrations(config)
    check_held_out(config)
    check_logging(config)
    check_processes(config)
    warn_about(config)
    for task in filter(None, (config.task, config.evaluation.task)):
        task.check()
    run_dir = pathlib.Path(config.run_dir)
    program = assemble(config, num_prompts=len(config.task.records("train")))
    stream = program.stream(config.batch.prompts)
    open_run(run_dir, to_yaml(config), free_keys(config) if was_started(run_dir) else EVERY_KEY)
    others = (config.evaluation.task,) if config.evaluation.task else ()
    verified = judging(config.task, **dataclasses.asdict(config.verification), others=others)
    with jax.set_mesh(program.mesh), verified as judge, Checkpoints.of(config) as checkpoints:
        with StopRequest() as stop, batches_of(program, stream, judge, stop) as batches:
            return Run(program, run_dir, batches, checkpoints, judge, stop).train(until)


def free_keys(config: Config) -> frozenset[str]:
    """Keys that may differ on resume. The number of steps is not one of them where the learning rate depends on it."""
    return FREE if config.optimizer.schedule == "constant" else FREE - {"steps"}


class Run:
    """A run in progress: the program, its directory, its checkpoints, and where the data stands."""

    def __init__(
        self,
        program: Program,
        run_dir: pathlib.Path,
        batches: Batches,
        checkpoints: Checkpoints,
        judge: Judge,
        stop: StopRequest,
    ):
        self.program, self.config, self.run_dir = program, program.config, run_dir
        self.batches, self.checkpoints, self.judge, self.stop = batches, checkpoints, judge, stop
        self.phases = Phases()
        self.collapse = CollapseRecord()
        self.told = False
        self.credited: tuple[CreditRow, ...] = ()
        self.reference: Any = None

    def train(self, until: int | None = None) -> Outcome:
        """All the steps that are left, or those until a step."""
        config, program = self.config, self.program
        end = config.steps if until is None else min(until, config.steps)
        state, first = self.start()
        if self.stop.agreed():
            say(f"stopped before step {first}; the same command starts from there")
            return Outcome(complete=False, steps=first, evaluations=load_evaluations(self.run_dir))
        self.evaluate_if_due(state, first)
        with Logs(program, self.run_dir, first) as logs:
            self.phases.collect()
            for step in range(first, end):
                # ---- sample and verify: G answers to each prompt, a reward for each answer ------------------
                batch = self.batches.take(step, state)
                if batch is None:
                    return self.stopped(step, state)
                self.batches.look_ahead(step + 1, state)
                # ---- score, credit, update ------------------------------------------------------------------
                self.tell_once(step, batch.filled)
                state, learned = self.learn(state, batch.filled)
                # ---- write down -----------------------------------------------------------------------------
                learned, times = {**batch.metrics, **learned}, {**batch.times, **self.phases.collect()}
                logs.write(step, batch.rounds, learned, self.collapse, times, self.credited)
                done = step + 1
                if self.stop.agreed():
                    return self.stopped(done, state)
                if done % config.checkpoint.every == 0 or done == end:
                    self.save(done, state)
                self.evaluate_if_due(state, done)
        self.checkpoints.wait()
        return Outcome(complete=True, steps=end, evaluations=load_evaluations(self.run_dir))

    def tell_once(self, step: int, batch: Filled) -> None:
        """That a batch could not be filled; how often that happens is a metric."""
        size = self.config.batch
        if size.max_rounds > 1 and batch.kept < size.prompts and not self.told:
            self.told = True
            say(
                f"note: step {step}: after {size.max_rounds} rounds {batch.kept} of {size.prompts} groups passed the "
                "objective's filter, and only those are trained on. The metric groups/kept shows how often; prompts nearer "
                "to the policy's ability, or a larger batch.max_rounds, fill the batch."
            )

    def learn(self, state: TrainState, filled: Filled) -> tuple[TrainState, Metrics]:
        """One batch: statistics of the policies that the objective reads, credit for each token, optimiser steps.

        A mini-batch without a group that is trained on is skipped: its gradient is zero, and momentum alone would
        move the parameters.
        """
        program, batch = self.program, self.config.batch
        rollout, told = program.rows(filled.groups.rollout), filled.groups.rollout
        stats = Stats(values={(Pass.SAMPLER, Stat.LOGPROB): program.rows(filled.groups.logprob)})
        with self.phases("score"):
            whole = program.score_plan(told)
            if program.score is not None:
                stats = stats.merge(program.score(state.policy, rollout, whole))
            if program.score_ref is not None:
                stats = stats.merge(program.score_ref(joined(self.reference, state.frozen), rollout, whole))
            jax.block_until_ready(stats)
        with self.phases("credit"):
            credit, objective, metrics = program.credit(rollout, stats, state.objective)
            metrics, live = jax.device_get((metrics, program.live(credit)))
            if is_first():
                wanted = self.config.logging.credit_answers
                version, size = filled.groups.version, batch.group_size
                self.credited = credited(program.tokenizer, told, version, credit, size, wanted)
        state = dataclasses.replace(state, objective=objective, step=state.step + 1)
        # Mini-batch j holds group j and every minibatches-th group after it.
        trained = range(min(batch.minibatches, filled.kept))
        updates = [
            (k, j)
            for k in range(self.config.objective.passes.count)
            for _ in range(batch.epochs)
            for j in trained
        ]
        with self.phases("update"):
            for k, j in updates:
                plan = program.update_plan(told, live, j)
                state, seen = program.update(state, rollout, stats, credit, plan, k, j)
                metrics = merge(metrics, jax.device_get(seen))
        return state, {**metrics, "optimizer/updates": Mean(total=float(len(updates)), count=1.0)}

    def start(self) -> tuple[TrainState, int]:
        """The newest checkpoint; or fresh weights and the warm-up, which become checkpoint 0."""
        program = self.program
        latest = self.checkpoints.latest()
        if latest is not None:
            state, data = self.checkpoints.restore(program.abstract.changing)
            state = dataclasses.replace(state, frozen=program.frozen())
            behind = self.checkpoints.behind(program.abstract.params)
            self.batches.set_position(data["stream"], self.checkpoints.arrays(), behind)
            self.collapse.set_state(data["collapse"])
            say(f"resuming {self.run_dir} after step {latest}")
        else:
            state = program.fresh_state()
            if self.config.warmup.steps:
                state = self.warm_up(state)
            if not self.stop.agreed():  # half a warm-up is no place to go on from
                self.save(0, state)
        if program.score_ref is not None:
            self.reference = self.checkpoints.reference(program.abstract.params, state.params)
        return state, int(state.step)

    def warm_up(self, state: TrainState) -> TrainState:
        """Demonstrations before the first rollout."""
        config, program = self.config, self.program
        prompts = min(config.batch.prompts, len(config.task.records("test")))

        def pass_rate(params: Any) -> float:
            found = evaluate(
                program, params, self.judge, prompts=prompts, samples=config.batch.group_size, k=(1,)
            )
            return found.rates[0].value

        with counting("warm-up") as progress:

            def report(step: int, loss: float, rate: float | None) -> bool:
                progress(step, config.warmup.steps)
                if rate is not None:
                    say(f"warm-up {step}/{config.warmup.steps}  loss {loss:.4f}  pass@1 {rate:.3f}")
                return not self.stop.agreed()

            return warm_up(program, state, pass_rate, report)

    def evaluate_if_due(self, state: TrainState, step: int) -> None:
        """Held-out pass@k at the first and last step and at the config's interval; not twice for one step."""
        wanted = self.config.evaluation
        due = step in (0, self.config.steps) or (wanted.every and step % wanted.every == 0)
        if not wanted.prompts or not due or step in from_first(list(load_evaluations(self.run_dir))):
            return
        self.batches.settle()
        with self.phases("evaluation"), counting("evaluation") as progress:
            found = evaluate(
                self.program,
                state.policy,
                self.judge,
                prompts=wanted.prompts,
                samples=wanted.samples,
                k=wanted.k,
                task=wanted.task,
                sampling=wanted.sampling.over(self.config.sampling),
                progress=progress,
            )
        if is_first():
            save_evaluation(self.run_dir, step, found)
        rates = "  ".join(f"pass@{r.k} {r.value:.3f} [{r.low:.3f}, {r.high:.3f}]" for r in found.rates)
        say(f"step {step}: {rates}")

    def save(self, done: int, state: TrainState) -> None:
        """A checkpoint: the training state, where the data stand, and the groups and weights that wait for the next batch."""
        stream, arrays = self.batches.position()
        data = {"stream": stream, "collapse": self.collapse.get_state()}
        self.checkpoints.save(done, state.changing, data, arrays, self.batches.behind)

    def stopped(self, done: int, state: TrainState) -> Outcome:
        """Leave everything so that the next start goes on from here."""
        self.save(done, state)
        self.checkpoints.wait()
        say(f"stopped after step {done}; the same command goes on from there")
        return Outcome(complete=False, steps=done, evaluations=load_evaluations(self.run_dir))
