"""Sticky assignment of partitions to group members: a pure function.

Balanced first, then as few moves as possible. The order of members (by joining) and of partitions
decides ties, so that a run replays exactly.
"""

from collections.abc import Collection, Mapping, Sequence

from infra.ports import TopicPartition


def assign_sticky(
    partitions: Sequence[TopicPartition],
    subscriptions: Mapping[str, Collection[str]],
    current: Mapping[str, Collection[TopicPartition]],
) -> dict[str, frozenset[TopicPartition]]:
    """Give every subscribed partition to exactly one member.

    Args: `subscriptions` holds each member's topics, in order of joining; `current` what members
    had before.
    """
    held: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
    free: list[TopicPartition] = []
    owners = {place: member for member, places in current.items() for place in places}
    for place in partitions:
        owner = owners.get(place)
        if owner in held and place.topic in subscriptions[owner]:
            held[owner].append(place)
        else:
            free.append(place)
    for place in free:
        takers = [member for member in held if place.topic in subscriptions[member]]
        if takers:
            held[min(takers, key=lambda member: len(held[member]))].append(place)
    # Each move brings two members' counts closer, so as many moves as partitions are always enough.
    for _ in partitions:
        if not _move_one(held, subscriptions):
            break
    return {member: frozenset(places) for member, places in held.items()}


def _move_one(
    held: dict[str, list[TopicPartition]], subscriptions: Mapping[str, Collection[str]]
) -> bool:
    """Move one partition from the fullest member that can give to the emptiest that may take it."""
    for giver in sorted(held, key=lambda member: -len(held[member])):
        for taker in sorted(held, key=lambda member: len(held[member])):
            if len(held[giver]) - len(held[taker]) < 2:
                break
            for place in reversed(held[giver]):
                if place.topic in subscriptions[taker]:
                    held[giver].remove(place)
                    held[taker].append(place)
                    return True
    return False
