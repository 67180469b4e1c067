"""Warnings of all commands: each function takes values and returns the text, a sentence or two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ortune.console.widgets import find_figure, format_count, format_figure, format_number
from ortune.errors import spell_as_flag
from ortune.knobs import Config
from ortune.knobs.config import CUDA
from ortune.knobs.environment import portable_variables
from ortune.knobs.providers import multiplies_in_tf32
from ortune.measure.comparison import DifferentFrequencies, LateCalls, Noise, Speedup, Summary, TwoSpeeds
from ortune.measure.interval import Interval
from ortune.numbers import format_ratio
from ortune.record.trials import Trial
from ortune.worker import Failure
from ortune.worker.installed import RuntimePackage
from ortune.worker.session_log import SessionWarning
from ortune.workload import FIGURES, Workload
from ortune.workload.program import ProgramRun

NOTABLE_SHARE = 0.1
"""Minimum share of disturbed blocks for a warning."""

MOST_SESSION_WARNINGS = 5
"""Number of ONNX Runtime's warnings that are shown."""

OPPOSED = 1.1
"""Minimum speedup in one figure, and slowdown in another one, for a warning: they then differ by more than a fifth."""

NOTABLE_DIFFERENCE = 1.02
"""Minimum ratio of a stated ratio and that of the figures that are shown, beyond the interval, for a warning; any if
one side is better by one of them, and worse by the other."""

FEWEST_FOR_P99 = 100
"""Calls from which on p99 is not the slowest one."""

NOTABLE_DRIFT = 1.25
"""Minimum ratio of the speedups of two stages for a warning: noise and the selection of the best do not explain it."""


def warn_unchecked_inputs(failure: Failure) -> str:
    """Return the warning that it was not checked whether the model runs on its inputs."""
    return f"Not checked whether the model runs on these inputs: {failure.title}: {failure.message}"


def warn_guessed_dimensions(guessed: Mapping[str, Sequence[str]]) -> str:
    """Warn that the model leaves dimensions open.

    Args:
        guessed: Assumed sizes, such as `batch=1`, by the name of the input.
    """
    inputs: dict[str, list[str]] = {}
    for name, sizes in guessed.items():
        inputs.setdefault(", ".join(sizes), []).append(name)
    assumed = "; ".join(f"{sizes} for {', '.join(names)}" for sizes, names in inputs.items())
    flags = f"{spell_as_flag('dim')}, {spell_as_flag('shape')} or {spell_as_flag('inputs')}"
    return f"The model does not fix all dimensions. Assumed {assumed}. Set them with {flags}."


def warn_default_pool(fault: str) -> str:
    """Warn that ONNX Runtime's default thread pool does not suit the host."""
    return f"ONNX Runtime's default thread pool does not suit this host: {fault}."


def warn_dropped_variables(names: Sequence[str]) -> str:
    """Warn that variables of ONNX Runtime are set, but not in the processes that are measured."""
    return (
        f"The environment sets {', '.join(names)}. Nothing is measured with {'it' if len(names) == 1 else 'them'}: the "
        "baseline is ONNX Runtime's own default."
    )


def warn_inherited_variables(names: Sequence[str]) -> str:
    """Warn that a program is measured with the variables of ONNX Runtime that are set."""
    it = "it" if len(names) == 1 else "them"
    return (
        f"The environment sets {', '.join(names)}, and the program gets {it}. The result holds for the program with "
        f"{it}."
    )


def warn_packages(packages: Sequence[RuntimePackage]) -> str:
    """Warn that several packages of onnxruntime are installed."""
    names = [package.name for package in packages]
    return (
        f"{', '.join(names[:-1])} and {names[-1]} overwrite each other's files. "
        f"Uninstall all of them, then install one: pip uninstall {' '.join(names)}"
    )


def warn_missing_runtime() -> str:
    """Warn that a search space is shown without knowing the onnxruntime."""
    return "onnxruntime is not installed. This is the space of the CPU provider, with the settings of all versions."


def warn_provider(name: str, fault: str) -> str:
    """Warn that an execution provider is not available."""
    return f"{name} is not used: {fault}."


def warn_busy_host(stage: str = "the measurement") -> str:
    """Warn that the result rests on blocks that were measured while other processes used the CPUs."""
    return (
        f"Other processes used the CPUs during {stage}, so the result holds for a busy host. "
        "If the model will run on a quiet host, measure on one."
    )


def warn_two_speeds(speeds: TwoSpeeds, *, median_is_unsure: bool = False) -> str:
    """Warn that a side ran at two speeds.

    Args:
        speeds: The speeds.
        median_is_unsure: Whether nothing was proven, and the objective is the median: that of a block is one speed or
            the other, and differs more between blocks than the mean.
    """
    advice = f" {spell_as_flag('objective', 'mean')} may prove more: the median is one speed or the other."
    return (
        f"{speeds.side[0].upper()}{speeds.side[1:]} ran at two speeds: in {speeds.slow_share:.0%} of its blocks, calls "
        f"took {speeds.factor:.2g} times as long. The result depends on how often that happens. It is common on "
        f"virtual machines, and with threads that are not pinned.{advice if median_is_unsure else ''}"
    )


def warn_different_frequencies(frequencies: DifferentFrequencies) -> str:
    """Warn that the CPUs ran at different frequencies for two sides."""
    slow, fast = (
        f"{1e-9 * hz:.3g} GHz for {side}"
        for hz, side in ((frequencies.slow_hz, frequencies.slow), (frequencies.fast_hz, frequencies.fast))
    )
    return (
        f"The CPUs ran at {slow}, and at {fast}. If that is due to a limit of power or heat, the ratio may be another "
        f"one where one of them runs alone for minutes: {spell_as_flag('sustained')} measures that."
    )


def warn_late_calls(late: LateCalls) -> str:
    """Warn that late calls of a launch compare otherwise than early ones."""
    return (
        f"Late calls differ from early ones: {late}. The later ones count. To measure more of them, increase "
        f"{spell_as_flag('budget')}."
    )


def warn_differing_ratio(
    baseline: Summary, candidate: Summary, objective: str, speedup: Interval, two_speeds: TwoSpeeds | None
) -> list[str]:
    """Warn that the figures of both sides have another ratio than the one that was found, and say why.

    Args:
        baseline: Figures of the baseline.
        candidate: Those of the other side.
        objective: What the ratio is about.
        speedup: The ratio, with its interval.
        two_speeds: The side that ran at two speeds, if one of both did.
    """
    base, own = find_figure(baseline, objective), find_figure(candidate, objective)
    if min(base, own, speedup.estimate) <= 0:  # it is not known, or a file says so
        return []
    shown = own / base if FIGURES[objective].larger_is_better else base / own
    is_notable = max(shown / speedup.estimate, speedup.estimate / shown) > NOTABLE_DIFFERENCE
    is_opposed = (shown - 1) * (speedup.estimate - 1) < 0
    if speedup.low <= shown <= speedup.high or not (is_notable or is_opposed):
        return []
    cause = f"{two_speeds.side} ran at two speeds" if two_speeds else "it compares neighbors in time"
    return [
        f"The figures of both sides differ by {format_ratio(shown)} in {FIGURES[objective].title}, and the ratio is "
        f"{format_ratio(speedup.estimate)}: {cause}, and the figures are of all blocks together."
    ]


def warn_opposed_figures(baseline: Summary, candidate: Summary, objective: str) -> list[str]:
    """Warn that the median, the mean and p99 disagree about which side is better, by more than a fifth.

    Args:
        baseline: Figures of the baseline.
        candidate: Those of the other side.
        objective: What was optimized.
    """
    # A figure that is not known is 0, and a p99 of few calls is about one call.
    n_calls = min(baseline.n_calls, candidate.n_calls)
    names = [name for name in ("p50", "mean", "p99") if name != "p99" or n_calls >= FEWEST_FOR_P99]
    values = {name: (find_figure(baseline, name), find_figure(candidate, name)) for name in names}
    ratios = {name: base / own for name, (base, own) in values.items() if base > 0 and own > 0}
    if not ratios:
        return []
    best, worst = max(ratios, key=lambda name: ratios[name]), min(ratios, key=lambda name: ratios[name])
    if ratios[best] < OPPOSED or ratios[worst] > 1 / OPPOSED:
        return []
    shown = [
        f"{name} from {format_figure(name, find_figure(baseline, name))} to "
        f"{format_figure(name, find_figure(candidate, name))}"
        for name in (best, worst)
    ]
    other = best if objective == worst else worst
    choose = f" To optimize another one, use {spell_as_flag('objective', other)}."
    return [f"The figures disagree: {shown[0]} is better, {shown[1]} is worse.{choose}"]


def warn_one_at_a_time(program: ProgramRun | None = None) -> str:
    """Warn that the configs were measured one after the other.

    Args:
        program: The program that was measured; None for a model alone.
    """
    why = "Several sessions of this model do not fit into memory, or it is unknown whether they do."
    if program and program.kind == "server":
        # One without {port} in its command always has the same port.
        why = "The program cannot run twice at the same time, as it has one port, or as there is too little memory."
    return (
        f"{why} Configs were therefore launched and measured one at a time, which takes longer, and drift of the host "
        "affects them more."
    )


def warn_jumps(n_jumps: int) -> str:
    """Warn that the clocks of the host jumped during blocks."""
    blocks = "1 block was" if n_jumps == 1 else f"{n_jumps} blocks were"
    return f"{blocks} thrown away, because the host slept or its time was set in the meantime."


def warn_relaunched(n_relaunched: int) -> str:
    """Warn that workers ended suddenly."""
    were = "worker ended suddenly and was" if n_relaunched == 1 else "workers ended suddenly and were"
    return f"{n_relaunched} {were} launched again. If nothing on this host ends processes, a setting may be unstable."


def warn_noise(
    noise: Noise,
    workload: Workload,
    *,
    stage: str = "the measurement",
    effect: str = "",
    median_is_unsure: bool = False,
) -> list[str]:
    """Warn of the state of the host during measurements.

    Args:
        noise: CPU use by other processes, and how rounds were measured.
        workload: What was measured.
        stage: When the blocks were measured on which the result rests.
        effect: What it means for the result that other processes used the CPUs during some blocks, as a sentence.
        median_is_unsure: See `warn_two_speeds`.
    """
    warnings = []
    if noise.regime == "contended":
        warnings.append(warn_busy_host(stage))
    elif noise.n_contended > NOTABLE_SHARE * noise.n_blocks:
        text = f"Other processes used the CPUs during {noise.n_contended} of {noise.n_blocks} blocks."
        warnings.append(f"{text} {effect}".rstrip())
    warnings += warn_of_rounds(noise, workload)
    if noise.n_jumps:
        warnings.append(warn_jumps(noise.n_jumps))
    if noise.n_relaunched:
        warnings.append(warn_relaunched(noise.n_relaunched))
    if noise.two_speeds:
        warnings.append(warn_two_speeds(noise.two_speeds, median_is_unsure=median_is_unsure))
    if noise.frequencies and not workload.sustained:
        warnings.append(warn_different_frequencies(noise.frequencies))
    if noise.n_throttled > NOTABLE_SHARE * noise.n_blocks:
        warnings.append(warn_slow_gpu(noise.n_throttled, noise.n_blocks))
    return warnings


def warn_of_rounds(noise: Noise, workload: Workload) -> list[str]:
    """Warn of rounds that do not count, of a choice in another regime, and of sides that were measured in turn.

    Args:
        noise: CPU use by other processes, and how rounds were measured.
        workload: What was measured.
    """
    warnings = []
    if noise.n_left_out and workload.counts_all_calls:
        rounds = "One round does" if noise.n_left_out == 1 else f"{noise.n_left_out} rounds do"
        warnings.append(f"{rounds} not count in the ratios, because of CPU use by other processes.")
    if noise.chosen_in:
        chosen, confirmed = ("used", "did not") if noise.chosen_in == "contended" else ("did not use", "did")
        warnings.append(
            f"The config was chosen while other processes {chosen} the CPUs, and confirmed while they {confirmed}. "
            "Another one may be better: search again on a quieter host."
        )
    if noise.one_at_a_time and not workload.sustained:
        warnings.append(warn_one_at_a_time(workload.program))
    return warnings


def warn_slow_gpu(n_slowed: int, n_blocks: int) -> str:
    """Warn that the GPU throttled."""
    return f"The GPU ran below its normal clock, due to heat or power, in {n_slowed} of {n_blocks} blocks."


def warn_disagreement(drift: float) -> str:
    """Warn that racing and confirmation found different speedups.

    Args:
        drift: Speedup in racing divided by speedup in confirmation.
    """
    return (
        f"The speedup measured in racing was {drift:.1f} times the speedup measured in confirmation. Conditions on "
        "this host change over time; the result describes the time of the confirmation only."
    )


def warn_slow_phase(speedup: Speedup) -> str:
    """Warn that the host became slow before the confirmation."""
    return (
        f"In the confirmation, {speedup.slow_phase}. Settings gain more or less while a host is slow: the interval "
        "includes what they gained before. Search again when the host is as fast as before."
    )


def warn_few_calls(objective: str, n_needed: int, n_calls: int) -> str:
    """Warn that a percentile rests on too few calls."""
    return (
        f"{objective} needs {n_needed} calls of each config, but only {n_calls} were measured. "
        f"Increase {spell_as_flag('budget')} or choose a lower percentile."
    )


def warn_overload(name: str, capacity_per_s: float, rate_per_s: float) -> str:
    """Warn that a config cannot serve the requests that arrive."""
    return (
        f"{name} is overloaded: it can serve {format_number(capacity_per_s)} of "
        f"{format_number(rate_per_s)} requests per second. "
        "Its latency grows for as long as the load lasts."
    )


def warn_unstable_outputs() -> str:
    """Warn that the values of outputs could not be compared."""
    return "The model's outputs differ from run to run, so only their types and shapes were compared."


def warn_not_compared() -> str:
    """Warn that the outputs of a program were not compared."""
    return "The program's outputs were not compared with those of the program as it is. Check that they are right."


def warn_other_models(names: Sequence[str]) -> str:
    """Warn of models that a program did not call before its search began."""
    return (
        f"The program also created sessions of {', '.join(names)}, which it did not call while it was observed at the "
        "beginning. They keep the program's own options, and have no record."
    )


def warn_failures(n_failed: int, n_tried: int, kinds: Iterable[str], trials: str = "") -> str:
    """Warn that candidates failed.

    Args:
        n_failed: Number of candidates that failed.
        n_tried: Number of all candidates, without the baseline.
        kinds: Kinds of their failures, as in `Failure.kind`.
        trials: File with the messages of the failures, if any.
    """
    named = ", ".join(sorted({kind.replace("_", " ") for kind in kinds}))
    where = f" See {trials} for their messages." if trials else ""
    return f"{n_failed} of {format_count(n_tried, 'candidate')} failed ({named}).{where}"


def warn_tf32_differences(base: Config, trials: Iterable[Trial]) -> list[str]:
    """Warn of candidates that were rejected for their outputs if only they, or only the baseline, multiply in TF32.

    Args:
        base: The config of the baseline.
        trials: The candidates.
    """
    differing = [
        trial.config
        for trial in trials
        if trial.failure
        and trial.failure.kind == "wrong_output"
        and multiplies_in_tf32(trial.config.providers) != multiplies_in_tf32(base.providers)
    ]
    if not differing:
        return []
    of_cuda = [
        config for config in (base, *differing) if config.provider == CUDA and multiplies_in_tf32(config.providers)
    ]
    in_tf32 = (of_cuda or differing)[0]
    return [
        f"The outputs of {format_count(len(differing), 'candidate')} differed too much. The cause may be TF32, in "
        f"which the GPU multiplies float32 by default.{explain_float32(in_tf32)}"
    ]


def warn_idle_providers(trials: Iterable[Trial]) -> list[str]:
    """Warn of each execution provider of which no candidate could be measured because the provider was not applied."""
    by_provider: dict[str, list[Trial]] = {}
    for trial in trials:
        by_provider.setdefault(trial.config.provider, []).append(trial)
    return [
        f"{provider} was not applied: {first.message} ({format_count(len(own), 'candidate')})."
        for provider, own in by_provider.items()
        if (first := own[0].failure) and all(trial.failure and trial.failure.kind == "not_applied" for trial in own)
    ]


def warn_sessions(warnings: Sequence[SessionWarning], n_sessions: int) -> list[str]:
    """Return what ONNX Runtime warned of, each warning once.

    Args:
        warnings: The warnings.
        n_sessions: Number of sessions that were loaded.
    """
    texts = []
    for warning in warnings[:MOST_SESSION_WARNINGS]:
        where = (
            "every session" if warning.n_sessions == n_sessions else f"{warning.n_sessions} of {n_sessions} sessions"
        )
        texts.append(f"ONNX Runtime, in {where}: {warning.text}")
    n_more = len(warnings) - len(texts)
    return [*texts, *([f"ONNX Runtime: {format_count(n_more, 'further warning')}."] if n_more else [])]


def warn_other_data(origins: Sequence[str]) -> str:
    """Warn that a record was made with the user's own data."""
    return f"The record was made with data {', '.join(origins)}. To use the same data, pass {spell_as_flag('inputs')}."


def warn_load_mismatch(recorded: str, here: str) -> str:
    """Warn that another background load runs than that of a record, and that the result is not added to it.

    Args:
        recorded: Name of its program in the record, or "none".
        here: The same here, "another command" of the same program, or "none".
    """
    text = f"Background load: {recorded} in the record, {here} here. The result does not belong to the record."
    return f"{text} To run a load, pass {spell_as_flag('beside')}." if here == "none" else text


def warn_mismatch(what: str, recorded: str, here: str) -> str:
    """Warn that this host or runtime differs from where a record was made.

    Args:
        what: What differs, such as `physical cores`.
        recorded: Its value in the record.
        here: Its value on this host.
    """
    return f"{what}: {recorded} in the record, {here} on this host."


def warn_common_scale() -> str:
    """Warn that the outputs of an item depend on the others in its call."""
    return (
        "This model quantizes all items of a call by one scale, so the outputs of an item depend on the other items. "
        "Where they differ too much from those of the baseline, batches are rejected."
    )


def warn_broken_line(path: str, number: int) -> str:
    """Warn that a line of a history cannot be read."""
    return f"{path}, line {number} is not an entry of a history and is skipped."


def warn_requirements(config: Config) -> tuple[str, ...]:
    """Return what a program must do, beyond setting session options, to get the effect of a config."""
    texts = []
    if config.without_captures() != config:
        # Only this export keeps inputs and outputs in place.
        code = " ortune apply --to python writes a function that does this." if config.provider == CUDA else ""
        texts.append(
            f"This config captures a graph: inputs and outputs must stay in the same buffers on the GPU.{code}"
        )
    elif config.io_binding:
        texts.append("This config needs I/O binding: call session.run_with_iobinding() instead of session.run().")
    if config.batch > 1:
        texts.append(f"This config is for calls with {config.batch} items each: the program must put them together.")
    if config.global_thread_pool:
        texts.append("This config needs a global thread pool: see the code that ortune apply prints.")
    if config.per_session:
        texts.append("This config has options for each session: call ortune.create_session(..., session=0), 1, ...")
    if config.run_config or config.run_options:
        texts.append("This config needs run options: pass ortune.run_options(RECORD) to each session.run().")
    variables = portable_variables(config)
    if variables:
        settings = " ".join(f"{name}={value}" for name, value in variables.items())
        texts.append(f"This config needs environment variables when the program starts: {settings}")
    return tuple(texts)


def warn_compilation(options: Sequence[str]) -> str:
    """Warn that sessions compile the model.

    Args:
        options: The options that can name a folder for compiled models.
    """
    return (
        f"Each new session compiles the model unless {' and '.join(options)} names a folder: "
        f"ortune apply {spell_as_flag('cache_dir', 'FOLDER')} sets it."
    )


def warn_pinned(n_processes: int) -> str:
    """Warn that processes must be started on CPUs of their own, which no option of a session does."""
    return (
        f"Each of the {n_processes} processes was measured on its own part of the CPUs. Start each worker of your "
        "program on its part, for example with taskset --cpu-list."
    )


def warn_other_nodes(provider: str, nodes: dict[str, int]) -> str:
    """Warn that some nodes do not run on the execution provider of the config.

    Args:
        provider: Name of the config's execution provider.
        nodes: Number of nodes by execution provider.
    """
    n_others = sum(count for name, count in nodes.items() if name != provider)
    where = ", ".join(f"{count} on {name}" for name, count in nodes.items())
    return f"{n_others} of {sum(nodes.values())} nodes do not run on {provider}: {where}."


def explain_float32(config: Config) -> str:
    """Return how to multiply in float32 with a config; "" if it does, or if no option does that."""
    if config.provider != CUDA or not multiplies_in_tf32(config.providers):
        return ""
    return f" To compute in float32, add {spell_as_flag('fix', 'cuda.use_tf32=0')}."


def warn_tf32(max_error: float, config: Config) -> str:
    """Warn that only one of the default and the config multiplies in TF32.

    Args:
        max_error: Largest difference seen, as a share of the output's largest value.
        config: The recommended config.
    """
    return (
        f"The GPU multiplies float32 in TF32: outputs differ from those in float32 by up to {max_error:.2g} of the "
        f"largest value.{explain_float32(config)}"
    )


def warn_approximate(max_error: float | None) -> str:
    """Warn that a config changes outputs.

    Args:
        max_error: Largest difference seen, as a share of the output's largest value; None if not known.
    """
    seen = f" The largest difference seen is {max_error:.2g} of the largest value." if max_error is not None else ""
    return f"Outputs are approximate.{seen} Check the accuracy of your model with this config."
