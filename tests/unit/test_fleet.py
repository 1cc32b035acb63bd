"""Who lives and who is lost, by append times alone, also after a time without any."""

from msgspec.structs import replace

from infra.fleet import FleetView
from schemas import limits
from schemas.operations import ProcessReported, ProcessState


def report(name: str, kind: str = "gateway") -> ProcessReported:
    """Return a report of the incarnation `name`."""
    return ProcessReported(
        process=name, incarnation=name, kind=kind, state=ProcessState.SERVING, pool="p"
    )


def view(*reports: tuple[str, int]) -> FleetView:
    """Return the view after reports of these names, appended at these seconds."""
    folded = FleetView()
    for name, at_s in reports:
        folded.apply(report(name, "worker" if name.startswith("w") else "gateway"), at_s * 1_000)
    return folded


def test_who_is_silent_while_others_report_is_lost() -> None:
    """More than five seconds behind the newest report of anyone, and only then."""
    others = [("w", at_s) for at_s in range(1, 8)]
    assert not view(("g", 1), *others[:5]).is_lost("g", 0)
    assert view(("g", 1), *others).is_lost("g", 0)
    assert not view(("g", 1), *others).is_lost("never reported", 7_000)
    assert view(*others).is_lost("never reported", 1_000)


def test_who_lives_is_looked_up_anew_with_each_report() -> None:
    """The answer stays the same object between reports, and tells of every one of them."""
    folded = view(("w", 1))
    alive = folded.live("worker")
    assert [each.process for each in alive] == ["w"]
    assert folded.live("worker") is alive
    assert folded.live("gateway") == ()
    for second in range(2, 8):
        folded.apply(report("w2", "worker"), second * 1_000)
    assert [each.process for each in folded.live("worker")] == ["w2"]


def test_nobody_is_lost_by_an_outage_of_the_log() -> None:
    """Who lived before nobody could report gets time to report after it; then rules are as ever."""
    before = [("g", 1), ("w", 1), ("g", 2), ("w", 2)]
    first = view(*before, ("w", 60))
    assert not first.is_lost("g", 0)
    assert [found.incarnation for found in first.live("worker", "p")] == ["w"]
    waiting = view(*before, *(("w", at_s) for at_s in range(60, 71)))
    assert not waiting.is_lost("g", 0)
    assert view(*before, *(("w", at_s) for at_s in range(60, 72))).is_lost("g", 0)
    back = [("w", 60), ("g", 61), *(("w", at_s) for at_s in range(61, 68))]
    assert view(*before, *back).is_lost("g", 0), "it has reported since: no excuse is left"


def test_an_outage_revives_nobody() -> None:
    """Who was lost before the silence began stays lost after it."""
    lost = [("g", 1), *(("w", at_s) for at_s in range(1, 9))]
    assert view(*lost).is_lost("g", 0)
    assert view(*lost, ("w", 60)).is_lost("g", 0)
    assert view(("w", 1), *(("g", at_s) for at_s in range(1, 9)), ("g", 60)).live("worker") == ()


def test_who_drains_or_leaves_was_told_to_stop() -> None:
    """One report of it is enough and outlives the farewell; who fell silent was told nothing."""
    folded = view(("w", 1), ("silent", 1))
    assert not folded.was_told_to_stop("w")
    folded.apply(replace(report("w", "worker"), state=ProcessState.DRAINING), 2_000)
    folded.apply(replace(report("gone", "worker"), left=True), 2_000)
    folded.apply(report("other"), 60_000)
    assert [name for name in ("w", "gone", "silent") if folded.was_told_to_stop(name)] == [
        "w",
        "gone",
    ]


def test_who_was_told_to_stop_is_forgotten_with_the_topic() -> None:
    """What is remembered is bounded by what the topic keeps."""
    folded = FleetView()
    folded.apply(replace(report("w", "worker"), left=True), 1_000)
    later_ms = 2_000 + limits.FLEET_STATUS_RETENTION_MS
    folded.apply(replace(report("x", "worker"), left=True), later_ms)
    assert not folded.was_told_to_stop("w") and folded.was_told_to_stop("x")
