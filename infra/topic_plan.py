"""What `apply` has to do to the log: a pure comparison of wanted and existing topics.

Owns the settings of each topic and the order of the steps. Touches nothing; `infra/apply.py`
carries the steps out.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from schemas import limits
from schemas.topics import CONTROL, REPLIES, Topic

# Topics whose incarnation is part of public reply ids (design rule 6.7).
LOCATED = (REPLIES,)

_SEGMENT_BYTES = 64 * limits.MIB
_SEGMENT_MS_MAX = 24 * 3_600_000
# Only closed segments are compacted or deleted: small and short ones keep a changelog small.
_COMPACTED_SEGMENT_BYTES = 16 * limits.MIB
_COMPACTED_SEGMENT_MS = 600_000
# A topic is kept for its retention and at most this part of it longer.
_SEGMENTS_PER_RETENTION = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingTopic:
    """A topic as it stands in the cluster."""

    partitions: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    """Make a topic."""

    topic: str
    partitions: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTopic:
    """Set settings that differ; `before` has None where one was not set."""

    topic: str
    before: Mapping[str, str | None]
    after: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnounceTopic:
    """Write a fresh incarnation of the topic to the control topic."""

    topic: str
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseTopic:
    """The topic has another number of partitions: keys would move, so nothing is changed."""

    topic: str
    found: int
    wanted: int


Step = CreateTopic | AlterTopic | AnnounceTopic | RefuseTopic


def settings(topic: Topic) -> dict[str, str]:
    """Return the settings that a topic has to have."""
    if topic.compacted:
        segment_bytes, segment_ms = _COMPACTED_SEGMENT_BYTES, _COMPACTED_SEGMENT_MS
    else:
        segment_bytes, segment_ms = _SEGMENT_BYTES, _SEGMENT_MS_MAX
    if topic.retention_ms is not None:
        segment_ms = min(segment_ms, topic.retention_ms // _SEGMENTS_PER_RETENTION)
    return {
        "cleanup.policy": "compact" if topic.compacted else "delete",
        "retention.ms": str(-1 if topic.retention_ms is None else topic.retention_ms),
        "retention.bytes": "-1",  # time alone decides: the log is the response store
        "max.message.bytes": str(limits.KAFKA_MESSAGE_BYTES_MAX),
        "message.timestamp.type": "LogAppendTime",  # decisions rest on the broker's times
        "segment.bytes": str(segment_bytes),
        "segment.ms": str(segment_ms),
        "unclean.leader.election.enable": "false",  # what was acknowledged is never given up
    }


def plan(
    wanted: Sequence[Topic],
    existing: Mapping[str, ExistingTopic],
    announced: Collection[str],
) -> list[Step]:
    """Return the steps from `existing` to `wanted`, in the order to take them; none = all is well.

    The control topic comes first. An incarnation is announced before its topic is made: where the
    second step fails, the next run draws another, so that no topic ever has its predecessor's.
    """
    steps: list[Step] = []
    for topic in sorted(wanted, key=lambda topic: topic.name != CONTROL):
        found = existing.get(topic.name)
        if found is not None and found.partitions != topic.partitions:
            refusal = RefuseTopic(topic=topic.name, found=found.partitions, wanted=topic.partitions)
            steps.append(refusal)
            continue
        if topic.name in LOCATED and (found is None or topic.name not in announced):
            steps.append(AnnounceTopic(topic=topic.name, partitions=topic.partitions))
        steps += _make_or_alter(topic, found)
    return steps


def render(steps: Sequence[Step]) -> str:
    """Return the steps for people, one a line; empty where there is nothing to do."""
    return "\n".join(_line(step) for step in steps)


def _make_or_alter(topic: Topic, found: ExistingTopic | None) -> list[Step]:
    wanted = settings(topic)
    if found is None:
        return [CreateTopic(topic=topic.name, partitions=topic.partitions, settings=wanted)]
    after = {name: value for name, value in wanted.items() if found.settings.get(name) != value}
    if not after:
        return []
    before = {name: found.settings.get(name) for name in after}
    return [AlterTopic(topic=topic.name, before=before, after=after)]


def _line(step: Step) -> str:
    match step:
        case CreateTopic():
            return f"create topic {step.topic} with {step.partitions} partitions"
        case AlterTopic():
            changes = ", ".join(
                f"{name} from {step.before[name] or 'the default'} to {value}"
                for name, value in step.after.items()
            )
            return f"alter topic {step.topic}: {changes}"
        case AnnounceTopic():
            return f"write a new incarnation of {step.topic} to {CONTROL}"
        case RefuseTopic():
            return (
                f"refused: topic {step.topic} has {step.found} partitions, expected {step.wanted}; "
                "keys would move between partitions. Make a topic of the next version instead"
            )
