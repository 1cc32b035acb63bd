"""`millstream bench gateway`: what the edge costs, beside LiteLLM's proxy on the same cores.

The platform runs whole with the scripted engine at no step time; LiteLLM stands before a mock
server of the same token behaviour. One load client, one measured system at a time.
"""

import dataclasses
import json
from contextlib import AsyncExitStack
from typing import Any

from infra.bench.accounts import PeakMemory, cpu_between, sample
from infra.bench.children import LoadClient, start_load
from infra.bench.gateway_figures import (
    OURS,
    THEIRS,
    GatewayFigures,
    GatewayOptions,
    gateway_measures,
)
from infra.bench.measure import Measure
from infra.bench.peers import LITELLM, Served, litellm, mock_server
from infra.bench.plan import LoadPlan, LoadResult
from infra.bench.platform import clean_environ, running_platform
from infra.bench.plots import bars
from infra.bench.prompts import body, prompts
from infra.bench.statistics import median
from infra.bench.surroundings import Surroundings

__all__ = ["bench_gateway"]

_GATEWAY = {OURS: "gateway-0", THEIRS: "litellm"}
_STEP_MS = 50.0
_ENDLESS_TOKENS = 100_000
_WARM_UP_REQUESTS = 100


async def bench_gateway(surroundings: Surroundings, options: GatewayOptions) -> list[Measure]:
    """Run the bench; see the module."""
    figures = {OURS: GatewayFigures(), THEIRS: GatewayFigures()}
    async with AsyncExitStack() as stack:
        folder, environ = surroundings.folder, surroundings.environ
        load = await start_load(clean_environ(environ), folder)
        stack.push_async_callback(load.stop)
        systems: dict[str, Served] = {}
        if options.peer:
            surroundings.say(f"preparing LiteLLM {LITELLM}")
            mock = await stack.enter_async_context(mock_server(environ, folder))
            systems[THEIRS] = await stack.enter_async_context(
                litellm(environ, folder, surroundings.peers, mock, surroundings.entropy)
            )
        async with AsyncExitStack() as fast:
            systems[OURS] = await _serve_ours(fast, surroundings, options, step_ms=0.0)
            for served in systems.values():
                await _warm_up(load, surroundings, served)
            for number in range(options.rounds):
                for name, served in systems.items():
                    surroundings.say(f"round {number + 1} of {options.rounds}: {name}")
                    await _throughput(load, surroundings, options, name, served, figures[name])
            for rate in options.rates:
                for name, served in systems.items():
                    if median(figures[name].whole_per_s) < rate:
                        surroundings.say(f"{name} cannot do {rate:g} requests/s")
                        continue
                    surroundings.say(f"{name} at {rate:g} requests/s")
                    await _open_loop(load, surroundings, options, rate, served, figures[name])
        surroundings.keep("gateway", {name: item.raw for name, item in figures.items()})
        punctual = await _open_streams(load, surroundings, options, systems, figures)
    surroundings.keep("gateway", {name: item.raw for name, item in figures.items()})
    _draw(surroundings, figures)
    return gateway_measures(figures, options, punctual)


def _draw(surroundings: Surroundings, figures: dict[str, GatewayFigures]) -> None:
    figures = {name: item for name, item in figures.items() if item.whole_per_s}
    groups = {
        "requests/s": {name: median(item.whole_per_s) for name, item in figures.items()},
        "requests per CPU s": {
            name: median(item.whole_per_cpu_s) for name, item in figures.items()
        },
    }
    surroundings.draw("gateway_requests", bars("bench gateway: whole replies", "1/s", groups))
    groups = {
        "events/s": {name: median(item.events_per_s) for name, item in figures.items()},
        "events per CPU s": {name: median(item.events_per_cpu_s) for name, item in figures.items()},
    }
    surroundings.draw("gateway_events", bars("bench gateway: streams", "1/s", groups))


async def _serve_ours(
    stack: AsyncExitStack, surroundings: Surroundings, options: GatewayOptions, *, step_ms: float
) -> Served:
    folder = surroundings.folder / f"step-{step_ms:g}"
    folder.mkdir()
    runs = max(options.streams, options.open_streams)
    platform = await stack.enter_async_context(
        running_platform(
            folder,
            surroundings.environ,
            engine="scripted",
            scripted_step_ms=step_ms,
            scripted_prefill_tokens_per_s=1e9,
            runs_max=runs,
            worker_inflight_max=4 * runs,
            gateway_inflight_max=4 * runs,
        )
    )
    return Served(
        host=platform.host,
        port=platform.port,
        path="/v1/chat/completions",
        headers=platform.headers,
        model=platform.model,
        pids=platform.pids(),
    )


def _plan(
    surroundings: Surroundings, served: Served, tokens: int, *, stream: bool, **how: Any
) -> LoadPlan:
    texts = prompts(surroundings.entropy, "short", 256)
    bodies = [json.dumps(body(served.model, text, tokens, stream=stream)) for text in texts]
    return LoadPlan(
        host=served.host,
        port=served.port,
        path=served.path,
        headers=dict(served.headers),
        bodies=tuple(bodies),
        tokens=tokens,
        **how,
    )


async def _warm_up(load: LoadClient, surroundings: Surroundings, served: Served) -> None:
    for stream in (False, True):
        await load.run(
            _plan(
                surroundings,
                served,
                8,
                stream=stream,
                mode="closed",
                concurrency=8,
                requests=_WARM_UP_REQUESTS,
            )
        )


async def _throughput(
    load: LoadClient,
    surroundings: Surroundings,
    options: GatewayOptions,
    name: str,
    served: Served,
    figures: GatewayFigures,
) -> None:
    """One round: whole bodies, then streams, both as fast as the system goes."""
    for stream in (False, True):
        tokens = options.stream_tokens if stream else options.whole_tokens
        plan = _plan(
            surroundings,
            served,
            tokens,
            stream=stream,
            mode="closed",
            concurrency=options.streams if stream else options.clients,
            duration_s=options.seconds,
        )
        before = sample(served.pids)
        result = await load.run(plan)
        cpu = cpu_between(before, sample(served.pids))
        figures.invalid += not result.is_valid
        figures.add(
            stream=stream,
            done=result.completed * (tokens if stream else 1),
            wall_s=result.wall_s,
            cpu=cpu,
            own=_GATEWAY[name],
        )
        figures.raw.append(
            {
                "stream": stream,
                "result": dataclasses.asdict(result),
                "valid": result.is_valid,
                "cpu_s": cpu,
            }
        )


async def _open_loop(
    load: LoadClient,
    surroundings: Surroundings,
    options: GatewayOptions,
    rate: float,
    served: Served,
    figures: GatewayFigures,
) -> None:
    plan = _plan(
        surroundings,
        served,
        options.whole_tokens,
        stream=False,
        mode="open",
        concurrency=options.clients,
        rate=rate,
        duration_s=options.seconds,
    )
    before = sample(served.pids)
    result = await load.run(plan)
    cpu = cpu_between(before, sample(served.pids))
    figures.latency[rate] = result
    figures.raw.append(
        {
            "rate": rate,
            "result": dataclasses.asdict(result),
            "valid": result.is_valid,
            "cpu_s": cpu,
        }
    )


async def _open_streams(
    load: LoadClient,
    surroundings: Surroundings,
    options: GatewayOptions,
    systems: dict[str, Served],
    figures: dict[str, GatewayFigures],
) -> LoadResult:
    """Hold streams open: ours at 20 events/s each, LiteLLM's for its memory alone."""
    async with AsyncExitStack() as stack:
        ours = await _serve_ours(stack, surroundings, options, step_ms=_STEP_MS)
        surroundings.say(f"{options.open_streams} open streams: {OURS}")
        await _warm_up(load, surroundings, ours)
        tokens = int(options.seconds * 2_000 / _STEP_MS)
        how: dict[str, Any] = {
            "mode": "closed",
            "concurrency": options.open_streams,
            "requests": options.open_streams,
        }
        task = load.run(_plan(surroundings, ours, tokens, stream=True, **how))
        before = sample(ours.pids)
        watch = PeakMemory(ours.pids[_GATEWAY[OURS]])
        result = await watch.during(task)
        cpu = cpu_between(before, sample(ours.pids))
        figures[OURS].rss_bytes = watch.rss_bytes
        figures[OURS].raw.append(
            {
                "open_streams": options.open_streams,
                "result": dataclasses.asdict(result),
                "valid": result.is_valid,
                "cpu_s": cpu,
            }
        )
    if THEIRS in systems:
        surroundings.say(f"{options.open_streams} open streams: {THEIRS}")
        watch = PeakMemory(systems[THEIRS].pids[_GATEWAY[THEIRS]])
        plan = _plan(
            surroundings,
            systems[THEIRS],
            _ENDLESS_TOKENS,
            stream=True,
            mode="hold",
            concurrency=options.open_streams,
        )
        held = await watch.during(load.hold(plan))
        await load.leave()
        await load.result()
        surroundings.say(f"{THEIRS} held {held} streams")
        figures[THEIRS].rss_bytes = watch.rss_bytes
    return result
