"""What ortune must know of an execution provider; each has a file of its own beside this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from ortune.host import Host
from ortune.knobs.dimension import DEFAULT_CHOICE, DEFAULT_LABEL, Choice, Dimension, Skipped, choose
from ortune.knobs.knob import Knob
from ortune.knobs.own import IO_BINDING
from ortune.knobs.wish import Wish
from ortune.model import ModelInfo

Found = Iterator[Dimension | Skipped]

CONVOLUTIONS = frozenset({"Conv", "ConvTranspose", "FusedConv"})
ATTENTION = frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention", "PackedAttention"})


class ExecutionProvider(msgspec.Struct, frozen=True, kw_only=True):
    """An execution provider.

    Attributes:
        name: ONNX Runtime's name.
        alias: Its short name.
        options: All of its options.
        behind: Providers that take the nodes that it does not, in order; the CPU is last.
        package: What to install for it.
        needs: What must be there beside the package, for people.
        builds: Whether creating a session compiles the model, which may take minutes.
        dimensions: Yields what is worth trying for a model, and what is not, with the reason.
        caches: Given a folder, returns the options that keep there what was compiled.
    """

    name: str
    alias: str
    options: tuple[Knob, ...]
    behind: tuple[str, ...] = ()
    package: str
    needs: str = ""
    builds: bool = False
    dimensions: Callable[[Host, ModelInfo, Wish], Found] = lambda host, model, wish: iter(())
    caches: Callable[[str], dict[str, str]] = lambda folder: {}

    def option(self, name: str) -> Knob:
        """Return the option of that name."""
        return next(knob for knob in self.options if knob.name == name)


def bind() -> Dimension:
    """Return the choice between `run` and `run_with_iobinding`."""
    why = "buffers on the device are kept from call to call; the program must call run_with_iobinding"
    return Dimension(knob=IO_BINDING, choices=(DEFAULT_CHOICE, Choice(label="on", value=True, why=why)))


def capture(knob: Knob, value: str, model: ModelInfo, wish: Wish) -> Found:
    """Yield the choice of a captured graph where all that it needs is there."""
    lacking = ""
    if model.traits.control_flow:
        lacking = "the graph has an If, Loop or Scan"
    elif not wish.one_caller:
        lacking = "several callers would share its buffers"
    elif wish.n_cases > 1:
        lacking = "the shapes of the inputs change"
    if lacking:
        yield Skipped(knob=knob, why=f"a captured graph is not possible: {lacking}")
        return
    why = "the whole graph is launched at once, instead of kernel by kernel"
    # It is replayed on fixed buffers, which only IO binding gives.
    yield choose(knob, (value, why), inert={IO_BINDING.id: frozenset({DEFAULT_LABEL})})
