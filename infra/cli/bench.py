"""`millstream bench NAME`: measured comparisons, each on a platform of its own."""

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import click

from infra.bench.measure import Measure, failed, report, table
from infra.bench.surroundings import Surroundings
from infra.cli.settings import configuration
from infra.cli.up import with_model
from infra.supervisor.startup import with_card
from infra.system import SystemClock, SystemEntropy

__all__ = ["command"]

_KINDS = ("short", "long")
_CLIENTS = ("1", "8", "32")

Bench = Callable[[Surroundings], Coroutine[Any, Any, list[Measure]]]


@click.group("bench")
def command() -> None:
    """Measure the platform, beside its peers where it has some; exit 1 where a bound breaks.

    Each bench starts and stops a platform of its own; peers are installed into folders under the
    cache, never into the product's environment.
    """


def _out(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that every bench has."""
    function = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(
        function
    )
    return click.option(
        "--out",
        type=click.Path(file_okay=False, path_type=Path),
        default=None,
        metavar="DIR",
        help="Keep raw figures and plots there.",
    )(function)


_concurrency = click.option(
    "--concurrency",
    "concurrencies",
    type=click.Choice(_CLIENTS),
    multiple=True,
    default=_CLIENTS,
)


@command.command("gateway")
@_out
@click.option("--rounds", type=click.IntRange(1), default=5)
@click.option("--seconds", type=click.FloatRange(1), default=10.0, help="Of each load.")
@click.option("--peer/--no-peer", default=True, help="Measure LiteLLM's proxy too.")
@click.option("--streams", type=click.IntRange(1), default=200)
@click.option("--open-streams", type=click.IntRange(1), default=1_000)
def gateway(
    as_json: bool,
    out: Path | None,
    rounds: int,
    seconds: float,
    peer: bool,
    streams: int,
    open_streams: int,
) -> None:
    """Measure what the edge costs, beside LiteLLM's proxy on the same cores."""
    from infra.bench.gateway import bench_gateway
    from infra.bench.gateway_figures import GatewayOptions

    options = GatewayOptions(
        rounds=rounds, seconds=seconds, peer=peer, streams=streams, open_streams=open_streams
    )
    _run("gateway", lambda around: bench_gateway(around, options), as_json, out)


@command.command("serve")
@_out
@click.option("--rounds", type=click.IntRange(1), default=5)
@click.option("--engine", type=click.Choice(["vllm", "scripted"]), default="vllm")
@click.option("--dtype", type=click.Choice(["bfloat16", "float32"]), default="bfloat16")
@click.option("--kind", "kinds", type=click.Choice(_KINDS), multiple=True, default=_KINDS)
@_concurrency
@click.option("--server/--no-server", default=True, help="Measure vLLM's own server too.")
@click.option("--default-server/--no-default-server", default=True, help="... as it comes, too.")
def serve(
    as_json: bool,
    out: Path | None,
    rounds: int,
    engine: str,
    dtype: str,
    kinds: tuple[str, ...],
    concurrencies: tuple[str, ...],
    server: bool,
    default_server: bool,
) -> None:
    """Measure tokens/s and latencies beside the engine alone and vLLM's own server."""
    from infra.bench.serve import ServeOptions, bench_serve

    config = with_card(with_model(configuration({"engine": engine, "dtype": dtype})))
    options = ServeOptions(
        rounds=rounds,
        kinds=kinds,
        concurrencies=tuple(map(int, concurrencies)),
        server=server and engine == "vllm",
        default_server=default_server,
    )
    _run("serve", lambda around: bench_serve(around, config, options), as_json, out)


@command.command("hooks")
@_out
@click.option("--rounds", type=click.IntRange(1), default=5)
@click.option("--engine", type=click.Choice(["vllm", "scripted"]), default="vllm")
@click.option("--dtype", type=click.Choice(["bfloat16", "float32"]), default="bfloat16")
@_concurrency
def hooks(
    as_json: bool,
    out: Path | None,
    rounds: int,
    engine: str,
    dtype: str,
    concurrencies: tuple[str, ...],
) -> None:
    """Measure what idempotency keys, metering and totals take of the tokens/s."""
    from infra.bench.hooks import HooksOptions, bench_hooks

    config = with_card(with_model(configuration({"engine": engine, "dtype": dtype})))
    options = HooksOptions(rounds=rounds, concurrencies=tuple(map(int, concurrencies)))
    _run("hooks", lambda around: bench_hooks(around, config, options), as_json, out)


@command.command("streams")
@_out
@click.option("--streams", type=click.IntRange(1), default=10_000)
@click.option("--seconds", type=click.FloatRange(1), default=30.0, help="How long they are held.")
def streams(as_json: bool, out: Path | None, streams: int, seconds: float) -> None:
    """Hold many streams of a slow model open, then let all leave at once."""
    from infra.bench.streams import StreamsOptions, bench_streams

    options = StreamsOptions(streams=streams, seconds=seconds)
    _run("streams", lambda around: bench_streams(around, options), as_json, out)


@command.command("parse")
@_out
@click.option("--prompts", type=click.IntRange(1), default=10, help="Large ones of each kind.")
@click.option("--megabytes", type=click.FloatRange(0.01), default=1.0, help="Size of each.")
def parse(as_json: bool, out: Path | None, prompts: int, megabytes: float) -> None:
    """Measure what reading a request costs, and how long a large one holds up others."""
    from infra.bench.parse import ParseOptions, bench_parse

    config = with_model(configuration({"engine": "scripted"}))
    options = ParseOptions(prompts=prompts, megabytes=megabytes)
    _run("parse", lambda around: bench_parse(around, config, options), as_json, out)


@command.command("soak")
@_out
@click.option("--minutes", type=click.FloatRange(0.1), default=10.0)
@click.option("--clients", type=click.IntRange(1), default=16)
@click.option("--engine", type=click.Choice(["scripted", "vllm"]), default="scripted")
@click.option("--kill-every", "kill_every_s", type=click.FloatRange(1), default=20.0)
def soak(
    as_json: bool, out: Path | None, minutes: float, clients: int, engine: str, kill_every_s: float
) -> None:
    """Run mixed traffic and kills, then look at memory, queues and the audit."""
    from infra.bench.soak import SoakOptions, bench_soak

    options = SoakOptions(
        minutes=minutes, clients=clients, engine=engine, kill_every_s=kill_every_s
    )
    _run("soak", lambda around: bench_soak(around, options), as_json, out)


@command.command("failover")
@_out
@click.option("--engine", type=click.Choice(["vllm", "scripted"]), default="vllm")
@click.option("--dtype", type=click.Choice(["bfloat16", "float32"]), default="float32")
@click.option("--rounds", type=click.IntRange(1), default=5, help="Kills per number of streams.")
@click.option("--streams", type=click.IntRange(1), multiple=True, default=(4, 16))
@click.option("--tokens", type=click.IntRange(1), default=200, help="Of each stream.")
@click.option("--keyed-pairs", type=click.IntRange(0), default=500, help="With --engine scripted.")
def failover(
    as_json: bool,
    out: Path | None,
    engine: str,
    dtype: str,
    rounds: int,
    streams: tuple[int, ...],
    tokens: int,
    keyed_pairs: int,
) -> None:
    """Kill the worker that serves open streams; measure the pause that their clients see."""
    from infra.bench.failover import FailoverOptions, bench_failover

    options = FailoverOptions(
        engine=engine,
        dtype=dtype,
        rounds=rounds,
        streams=streams,
        tokens=tokens,
        keyed_pairs=keyed_pairs,
    )
    _run("failover", lambda around: bench_failover(around, options), as_json, out)


async def _until_told_to_stop(bench: Coroutine[Any, Any, list[Measure]]) -> list[Measure]:
    """Await a bench; SIGTERM cancels it as SIGINT does, so that what it started is ended."""
    task = asyncio.create_task(bench)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def _run(name: str, bench: Bench, as_json: bool, out: Path | None) -> None:
    """Run a bench in a scratch folder, print its measures, exit by them."""
    scratch = Path(tempfile.mkdtemp(prefix=f"millstream-bench-{name}-"))
    surroundings = Surroundings(
        folder=scratch,
        peers=configuration({}).cache_dir / "peers",
        environ=os.environ,
        clock=SystemClock(),
        entropy=SystemEntropy(),
        say=lambda text: click.echo(f"bench {name}: {text}", err=True),
        out=out,
    )
    try:
        measures = asyncio.run(_until_told_to_stop(bench(surroundings)))
    except asyncio.CancelledError:
        shutil.rmtree(scratch, ignore_errors=True)
        raise click.Abort from None
    except BaseException:
        click.echo(f"bench {name}: logs are kept in {scratch}", err=True)
        raise
    shutil.rmtree(scratch, ignore_errors=True)
    text = json.dumps(report(name, measures)) if as_json else table(measures)
    click.echo(text)
    if out is not None:
        (out / f"{name}.txt").write_text(table(measures) + "\n")
    sys.exit(1 if failed(measures) else 0)
