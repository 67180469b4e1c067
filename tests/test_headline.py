"""Whether the ratio of the headline and the figures of the table agree, or a line below them says why they do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import TINY_CNN, run_ortune
from tests.records import ONE_THREAD, make_local_record, write
from tests.simulated import Effect, Scenario

STEADY = Effect(cpus=1.8)

TWO_SPEEDS = Effect(settings={"intra_op_num_threads": 1}, factor=0.4, slow_factor=3.0, slow_blocks=0.4)
"""The median of all calls is that of the fast ones. The ratios of pairs are those of both."""

COMMANDS = {
    "search": ("search", TINY_CNN, "--tune", "intra_op_num_threads=1", "--only", "intra_op_num_threads"),
    "bench": ("bench", TINY_CNN, "--set", "intra_op_num_threads=1"),
    "verify": ("apply", "tuned.json", TINY_CNN, "--verify"),
}


def show(command: str, folder: Path, *effects: Effect) -> str:
    write(make_local_record(TINY_CNN, ONE_THREAD), folder / "tuned.json")
    host = Scenario(is_here=True, effects=effects)
    done = run_ortune(*COMMANDS[command], "--budget", "60s", cwd=folder, columns=400, simulate=host)
    assert not done.stderr
    return done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_two_speeds_are_named_as_the_cause(command: str, tmp_path: Path) -> None:
    text = show(command, tmp_path, STEADY, TWO_SPEEDS)
    assert "The figures of both sides differ by " in text
    assert "ran at two speeds, and the figures are of all blocks together." in text


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_said_where_they_agree(command: str, tmp_path: Path) -> None:
    assert "The figures of both sides" not in show(
        command, tmp_path, STEADY, Effect(settings=TWO_SPEEDS.settings, factor=0.6)
    )
