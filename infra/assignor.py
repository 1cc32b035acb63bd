"""Who in a consumer group gets which partition: a pure function, for every adapter of the log.

Balanced first, topic by topic; then as few moves as possible; then those partitions move that have
the least unfinished work, since moving a busy one costs a takeover. The order of members and of
partitions decides ties, so that a run replays exactly. Source: design rule 6.9; KIP-54 for what
sticks. Called by the groups of `infra/memory/` and by the leader's assignor in `infra/kafka/`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from infra.ports import TopicPartition

__all__ = ["Claim", "assign_idlest", "newest_round"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a member says of itself when it joins a round of assignment."""

    topics: Collection[str]
    """What it reads."""
    held: Mapping[TopicPartition, int] = field(default_factory=dict)
    """What it held until now, with the unfinished work in each."""
    round: int = 0
    """The round that gave it these; a partition claimed twice is the newer claim's."""


def newest_round(claims: Collection[Claim]) -> int:
    """Return the number of the next round: greater than all that members have seen."""
    return 1 + max((claim.round for claim in claims), default=0)


def assign_idlest(
    partitions: Sequence[TopicPartition], claims: Mapping[str, Claim]
) -> dict[str, frozenset[TopicPartition]]:
    """Give every subscribed partition to exactly one member.

    Args: `claims` by member, in an order that all rounds keep (by joining, or by id).
    """
    work = _work(claims)
    held: dict[str, list[TopicPartition]] = {member: [] for member in claims}
    owners = _owners(claims)
    for topic in dict.fromkeys(place.topic for place in partitions):
        takers = [member for member, claim in claims.items() if topic in claim.topics]
        if takers:
            places = [place for place in partitions if place.topic == topic]
            for member, given in _balance(places, takers, owners, work, held).items():
                held[member] += given
    return {member: frozenset(places) for member, places in held.items()}


def _balance(
    places: Sequence[TopicPartition],
    takers: Sequence[str],
    owners: Mapping[TopicPartition, str],
    work: Mapping[TopicPartition, int],
    elsewhere: Mapping[str, Sequence[TopicPartition]],
) -> dict[str, list[TopicPartition]]:
    """Spread one topic's partitions: the counts of any two takers differ by one at most."""
    given: dict[str, list[TopicPartition]] = {member: [] for member in takers}
    free = []
    for place in places:
        owner = owners.get(place)
        if owner in given:
            given[owner].append(place)
        else:
            free.append(place)

    def load(member: str) -> tuple[int, int]:
        return len(given[member]), len(elsewhere[member])

    for place in free:
        given[min(takers, key=load)].append(place)
    # Each move brings two members' counts closer, so as many moves as partitions are enough.
    for _ in places:
        taker = min(takers, key=load)
        most = max(len(mine) for mine in given.values())
        if most - len(given[taker]) < 2:
            break
        fullest = [member for member in takers if len(given[member]) == most]
        giver, place = min(
            ((member, place) for member in fullest for place in given[member]),
            key=lambda found: (work.get(found[1], 0), -found[1].partition),
        )
        given[giver].remove(place)
        given[taker].append(place)
    return given


def _owners(claims: Mapping[str, Claim]) -> dict[TopicPartition, str]:
    """Return who holds what; of two claims the newer round's counts, then the first."""
    owners: dict[TopicPartition, str] = {}
    for member, claim in claims.items():
        for place in claim.held:
            rival = owners.get(place)
            if rival is None or claims[rival].round < claim.round:
                owners[place] = member
    return owners


def _work(claims: Mapping[str, Claim]) -> dict[TopicPartition, int]:
    owners = _owners(claims)
    return {place: claims[member].held[place] for place, member in owners.items()}
