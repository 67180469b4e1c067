"""Looks for sizes of guessed dimensions with which a model runs, by trying them.

Each try shows how far the model gets. Sizes with which it gets further are kept. Usual sizes are tried first, then the
numbers in messages of ONNX Runtime.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from ortune.errors import InputsError
from ortune.model import ModelInfo
from ortune.workload.dimensions import IMAGE_SIDE, SEQUENCE_LENGTH, choose_sizes, is_name
from ortune.workload.feed import InputOptions

USUAL_SIZES: Mapping[int, tuple[int, ...]] = {
    IMAGE_SIDE: (320, 640, 256, 192, 128, 96, 64, 48, 512, 416, 384, 299, 300, 28, 32, 112, 160, 480, 1024, 800),
    SEQUENCE_LENGTH: (512, 256, 1024, 64, 32, 16, 8, 4, 2, 1, 77, 80, 100, 400, 2048, 3000, 4096, 16000),
}
"""Sizes that models ask for, by the size that was guessed: those of images, and those of sequences."""

OTHER_SIZES = (2, 1, 3, 4, 8, 16, 32, 64, 128, 12, 6, 80, 256, 512)

MOST_MESSAGE_NUMBERS = 8
LARGEST_SIZE = 20_000
"""Numbers of a message that are tried, and the largest size that is."""

LARGEST_SIZE_RATIO = 8
"""How many times too small a size may be, if a message has two sizes that should be equal."""

MOST_TRIES = 400

Slot = tuple[str, int]
"""An open dimension: a symbol and -1, or an input and its axis."""


class RunAttempt(msgspec.Struct, frozen=True):
    """What a run of the model showed.

    Attributes:
        message: Why it failed; empty if it did not.
        depth: How far it got: the position of the node that failed. Larger is further.
    """

    message: str = ""
    depth: int = -1


Try = Callable[[InputOptions], RunAttempt | None]
"""Runs the model on inputs, or returns None when there is no time left."""


class WorkingInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes with which a model runs.

    Attributes:
        dims: Sizes of symbols.
        shapes: Shapes of inputs whose dimensions have no name.
    """

    dims: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}


def list_slots(model: ModelInfo, options: InputOptions) -> dict[Slot, int]:
    """Return the open dimensions that are guessed, with their sizes."""
    sizes, symbols = choose_sizes(model, pick_first(options), options.shapes)
    slots: dict[Slot, int] = {}
    for info in model.inputs:
        if info.name not in sizes or info.name in options.shapes:
            continue
        for axis, (dim, size) in enumerate(zip(info.shape or (), sizes[info.name].shape, strict=True)):
            if is_name(dim):
                if f"{dim}={size}" in sizes[info.name].guessed and dim in symbols:
                    slots[dim, -1] = size
            elif not isinstance(dim, int) and dim not in options.dims:
                slots[info.name, axis] = size
    return slots


def pick_first(options: InputOptions) -> dict[str, int]:
    """Return the first of the sizes of each dimension."""
    return {name: sizes[0] for name, sizes in options.dims.items()}


def apply_sizes(model: ModelInfo, options: InputOptions, changed: Mapping[Slot, int]) -> InputOptions:
    """Return the user's options, with other sizes for some open dimensions."""
    found = describe_sizes(model, options, changed)
    return msgspec.structs.replace(
        options,
        dims={**options.dims, **{name: (size,) for name, size in found.dims.items()}},
        shapes={**options.shapes, **found.shapes},
    )


def describe_sizes(model: ModelInfo, options: InputOptions, changed: Mapping[Slot, int]) -> WorkingInputs:
    """Return the sizes of symbols, and the whole shapes of inputs with other changed dimensions."""
    dims = {name: size for (name, axis), size in changed.items() if axis < 0}
    sizes, _ = choose_sizes(model, {**pick_first(options), **dims}, options.shapes)
    shapes: dict[str, tuple[int, ...]] = {}
    for (name, axis), size in changed.items():
        if axis >= 0:
            shape = list(shapes.get(name, sizes[name].shape))
            shape[axis] = size
            shapes[name] = tuple(shape)
    return WorkingInputs(dims=dims, shapes=shapes)


def find_working_sizes(model: ModelInfo, options: InputOptions, run: Try) -> WorkingInputs | None:
    """Return sizes with which a model runs, as few as possible, or None if none were found.

    Args:
        model: The model. It does not run with the sizes that are guessed.
        options: The user's options, which are kept.
        run: Runs the model.
    """
    slots = list_slots(model, options)
    if not slots:
        return None
    n_tries = 0
    known: dict[frozenset[tuple[Slot, int]], RunAttempt | None] = {}

    def attempt(changed: Mapping[Slot, int]) -> RunAttempt | None:
        nonlocal n_tries
        key = frozenset(changed.items())
        if key not in known:
            n_tries += 1
            try:
                known[key] = run(apply_sizes(model, options, changed)) if n_tries <= MOST_TRIES else None
            except InputsError as error:  # too large
                known[key] = RunAttempt(error.message)
        return known[key]

    best: dict[Slot, int] = {}
    reached = attempt(best)
    while reached is not None and reached.message:
        for change in propose_changes(slots, best, reached.message):
            changed = {slot: size for slot, size in {**best, **change}.items() if size != slots[slot]}
            outcome = attempt(changed)
            if outcome is None:
                return None
            if not outcome.message or outcome.depth > reached.depth:
                best, reached = changed, outcome
                break
        else:
            return None
    if reached is None:
        return None
    # What helped on the way may not be needed in the end.
    for slot in list(best):
        fewer = {other: size for other, size in best.items() if other != slot}
        outcome = attempt(fewer)
        if outcome is not None and not outcome.message:
            best = fewer
    return describe_sizes(model, options, best)


def propose_changes(slots: Mapping[Slot, int], current: Mapping[Slot, int], message: str) -> Iterator[dict[Slot, int]]:
    """Yield sizes to try next, the most promising first.

    Args:
        slots: The open dimensions, with the sizes that were guessed.
        current: The sizes that differ from that.
        message: Why the model does not run with the current ones.
    """
    numbers = list(dict.fromkeys(read_numbers(message)))[:MOST_MESSAGE_NUMBERS]
    # "128 by 64": a size is half of what it should be.
    for large, small in itertools.combinations(sorted(numbers, reverse=True), 2):
        for slot, size in {**slots, **current}.items():
            if 1 < small < large <= LARGEST_SIZE_RATIO * small and size in (large, small) and size * large % small == 0:
                yield {slot: size * large // small}
    kinds: dict[int, list[Slot]] = {}
    for slot, size in slots.items():
        kinds.setdefault(size, []).append(slot)
    for guess, alike in kinds.items():
        for size in USUAL_SIZES.get(guess, ()):
            yield dict.fromkeys(alike, size)
    for guess, alike in kinds.items():
        for size in USUAL_SIZES.get(guess, ()) if len(alike) > 1 else ():
            yield from ({slot: size} for slot in alike)
    for number in numbers:
        yield from ({slot: number} for slot in slots if {**slots, **current}[slot] != number)
    for size in OTHER_SIZES:
        yield dict.fromkeys(slots, size)
        yield from ({slot: size} for slot in slots)


def read_numbers(message: str) -> Iterable[int]:
    """Return the numbers of a message that may be sizes, without those of places in source files."""
    text = re.sub(r"\S+\.(?:cc|h|cpp):\d+|Name:'[^']*'|node\. |\bstatus code\b", " ", message)
    return (
        int(number) for number in re.findall(r"(?<![\w.])\d{1,5}(?![\w.])", text) if 0 < int(number) <= LARGEST_SIZE
    )
