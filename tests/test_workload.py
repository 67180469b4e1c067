"""Loads, objectives and limits as users write them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ortune import Goal, Load, UsageError
from ortune.errors import spell_as_flag
from ortune.options import make_request
from ortune.requests import SearchRequest
from ortune.workload import make_goal, make_load, parse_limit


def goal_of(options: dict[str, Any]) -> Goal:
    """Return the load, the objectives and the limits of options as users give them."""
    return make_request(SearchRequest, {"model": "model.onnx", **options}).goal


def message_of(options: dict[str, Any]) -> str:
    """Return the message for options that are not valid, as the command line prints it."""
    with pytest.raises(UsageError) as caught:
        goal_of(options)
    return caught.value.render(spell_as_flag)[0]


@pytest.mark.parametrize(
    ("options", "load", "objective"),
    [
        ({}, Load(), "p50"),
        ({"clients": 1}, Load(), "p50"),
        ({"clients": 4}, Load(scenario="multi-client", clients=4), "throughput"),
        ({"rate": "50/s"}, Load(scenario="server", rate_per_s=50, arrivals="poisson"), "p99"),
        (
            {"rate": "30/min", "arrivals": "periodic", "clients": 2},
            Load(scenario="server", clients=2, rate_per_s=0.5, arrivals="periodic"),
            "p99",
        ),
        ({"processes": 2}, Load(scenario="multi-client", processes=2), "throughput"),
        (
            {"processes": 2, "pin_processes": True, "clients": 3},
            Load(scenario="multi-client", clients=3, processes=2, pinned=True),
            "throughput",
        ),
        (
            {"processes": 2, "rate": "50/s"},
            Load(scenario="server", rate_per_s=50, arrivals="poisson", processes=2),
            "p99",
        ),
        ({"rate": 12.5}, Load(scenario="server", rate_per_s=12.5, arrivals="poisson"), "p99"),
    ],
)
def test_loads(options: dict[str, Any], load: Load, objective: str) -> None:
    goal = goal_of(options)
    assert goal.load == load
    assert goal.objectives == (objective,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 0}, "--clients 0: must be from 1 to 1024"),
        ({"clients": -3}, "--clients -3: must be from 1 to 1024"),
        ({"clients": 100000}, "--clients 100000: must be from 1 to 1024"),
        ({"rate": "0"}, "--rate 0: is not a rate"),
        ({"rate": "0/s"}, "--rate 0/s: is not a rate"),
        ({"rate": "-5/s"}, "--rate -5/s: is not a rate"),
        ({"rate": "fast"}, "--rate fast: is not a rate"),
        ({"rate": "50/week"}, "--rate 50/week: is not a rate"),
        ({"rate": "nan"}, "--rate nan: is not a rate"),
        ({"rate": "1/min"}, "--rate 1/min: too few requests"),
        ({"processes": 0}, "--processes 0: must be from 1 to 64"),
        ({"processes": 65}, "--processes 65: must be from 1 to 64"),
        ({"processes": 10, "rate": "1/s"}, "--rate 1/s: too few requests for 10 processes"),
        ({"pin_processes": True}, "--pin-processes needs several processes"),
        ({"arrivals": "poisson"}, "--arrivals poisson: needs a rate"),
        ({"rate": "5/s", "arrivals": "burst"}, "--arrivals burst: is not one of the choices"),
    ],
)
def test_loads_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    assert message in message_of(options)


@pytest.mark.parametrize(
    ("text", "figure", "bound", "relative"),
    [
        ("p99<20ms", "p99", 20e6, False),
        ("P99 <= 0.5 s", "p99", 0.5e9, False),
        ("memory<500MB", "memory", 500e6, False),
        ("memory<1GiB", "memory", 2**30, False),
        ("cpu<150us", "cpu", 150e3, False),
        ("throughput>100/s", "throughput", 100, False),
        ("throughput>60/min", "throughput", 1, False),
        ("load-time<2s", "load-time", 2e9, False),
        ("p99<1.3x", "p99", 1.3, True),
        ("p99.9<1.3ms", "p99.9", 1.3e6, False),
    ],
)
def test_limits(text: str, figure: str, bound: float, relative: bool) -> None:
    limit = parse_limit(text)
    assert (limit.figure, limit.bound, limit.relative) == (figure, bound, relative)
    inside, outside = (0.9, 1.1) if figure != "throughput" else (1.1, 0.9)
    assert limit.excess(inside * bound) < 0 < limit.excess(outside * bound)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("p99", "is not a limit"),
        ("p99<", "is not a limit"),
        ("p99.90<20ms", "p99.90: is not a figure"),
        ("p42<20ms", "p42: is not a figure"),
        ("p99<20MB", "20mb is not a bound"),
        ("p99<20", "20 is not a bound"),
        ("p99<0ms", "0ms is not a bound"),
        (f"p99<{'9' * 400}ms", "9ms is not a bound"),
        (f"p99<{'9' * 308}s", "9s is not a bound"),
        (f"p99<0.{'0' * 400}1ms", "1ms is not a bound"),
        ("p99>20ms", "is written with <"),
        ("throughput<100/s", "is written with >"),
    ],
)
def test_limits_that_make_no_sense(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_limit(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "speed"}, "--objective speed: is not a figure"),
        ({"pareto": "p99"}, "two or three"),
        ({"pareto": "p99,p99"}, "two or three"),
        ({"pareto": "p99,cpu,memory,mean"}, "two or three"),
        ({"pareto": "p99,speed"}, "--pareto speed: is not a figure"),
        ({"pareto": "p99,cpu", "objective": "p99"}, "cannot be combined with"),
        ({"limit": ("speed<1ms",)}, "--limit speed: is not a figure"),
    ],
)
def test_goals_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    assert message in message_of(options)


def test_a_rate_fixes_the_throughput() -> None:
    with pytest.raises(UsageError, match="rate of requests determines"):
        make_goal(make_load(rate_per_s=5), "throughput")
    assert "--limit throughput>4/s: the rate of requests determines" in message_of(
        {"rate": "5/s", "objective": "mean", "limit": ("throughput>4/s",)}
    )


def test_processes_share_the_requests_and_have_their_own_clients() -> None:
    load = make_load(clients=3, processes=4, rate_per_s=100)
    assert load.n_callers == 12
    assert load.of_process == make_load(clients=3, rate_per_s=25)
    # Of 12 callers, 100 requests of 60 ms keep 6 busy.
    assert load.utilization(60e6) == pytest.approx(0.5)
    assert load.of_process.utilization(60e6) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "fields",
    [{"processes": 0}, {"processes": 65}, {"processes": 2, "scenario": "single-stream"}, {"pinned": True}],
)
def test_records_have_no_impossible_processes(fields: dict[str, Any]) -> None:
    document = {"scenario": "multi-client", **fields}
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(document), type=Load)


def test_loads_read_like_sentences() -> None:
    assert str(Load()) == "one client, back to back"
    assert str(make_load(clients=3)) == "3 clients, back to back"
    assert str(make_load(processes=2)) == "2 processes with one client each, back to back"
    assert str(make_load(clients=4, sessions=2, processes=2, pinned=True, rate_per_s=50)) == (
        "50 requests/s at random, 2 processes on CPUs of their own with 4 clients on 2 sessions each"
    )
    assert str(make_load(rate_per_s=50)) == "50 requests/s at random, one client"
    assert str(make_load(rate_per_s=0.5, clients=2, arrivals="periodic")) == (
        "0.5 requests/s at equal intervals, 2 clients"
    )
