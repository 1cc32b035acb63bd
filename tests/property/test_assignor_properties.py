"""Assignments over any group: whole, balanced, sticky, and what moves is the idlest."""

from collections.abc import Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from infra.assignor import Claim, assign_idlest, newest_round
from infra.ports import TopicPartition

BOUNDED = settings(max_examples=300, deadline=None)
MEMBERS = tuple("abcdef")


def lanes(count: int, topic: str = "t") -> list[TopicPartition]:
    """Return a topic's partitions."""
    return [TopicPartition(topic, index) for index in range(count)]


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[TopicPartition], dict[str, Claim]]:
    """Return one topic's partitions and members that hold some of them, each at most once."""
    places = lanes(draw(st.integers(0, 16)))
    members = draw(st.lists(st.sampled_from(MEMBERS), unique=True, min_size=1))
    owners = {place: draw(st.sampled_from([*members, "gone"])) for place in places}
    work = {place: draw(st.integers(0, 3)) for place in places}
    return places, {
        member: Claim(
            topics=("t",),
            held={place: work[place] for place in places if owners[place] == member},
        )
        for member in members
    }


@st.composite
def quarrels(draw: st.DrawFn) -> tuple[list[TopicPartition], dict[str, Claim]]:
    """Return two topics' partitions and members whose claims and subscriptions are any."""
    places = lanes(draw(st.integers(0, 6))) + lanes(draw(st.integers(0, 6)), "u")
    alien = TopicPartition("t", 99)
    claimed = st.dictionaries(st.sampled_from([*places, alien]), st.integers(0, 3))
    topics = st.sets(st.sampled_from(("t", "u", "absent")))
    members = draw(st.lists(st.sampled_from(MEMBERS), unique=True))
    return places, {
        member: Claim(topics=draw(topics), held=draw(claimed), round=draw(st.integers(0, 2)))
        for member in members
    }


def owners_of(given: Mapping[str, frozenset[TopicPartition]]) -> dict[TopicPartition, str]:
    """Return who has what, checking that nothing is had twice."""
    pairs = [(place, member) for member, places in given.items() for place in places]
    found = dict(pairs)
    assert len(found) == len(pairs)
    return found


def moved_from(claims: Mapping[str, Claim], given: Mapping[str, frozenset[TopicPartition]]) -> int:
    """Return how many partitions were taken from members that held them."""
    return sum(len(claim.held.keys() - given[member]) for member, claim in claims.items())


def fewest_moves(places: Sequence[TopicPartition], claims: Mapping[str, Claim]) -> int:
    """Return how many have to move for balance: the fullest members may keep one more."""
    floor, extra = divmod(len(places), len(claims))
    counts = sorted((len(claim.held) for claim in claims.values()), reverse=True)
    keeps = [floor + 1] * extra + [floor] * (len(claims) - extra)
    return sum(max(0, count - keep) for count, keep in zip(counts, keeps, strict=True))


@BOUNDED
@given(quarrels())
def test_every_partition_is_given_once_to_a_member_that_reads_it(
    group: tuple[list[TopicPartition], dict[str, Claim]],
) -> None:
    """Whatever members claim: nothing is lost, doubled, or given to one that does not read it."""
    places, claims = group
    given = assign_idlest(places, claims)
    assert given.keys() == claims.keys()
    owners = owners_of(given)
    for place in places:
        takers = [member for member, claim in claims.items() if place.topic in claim.topics]
        assert (place in owners) == bool(takers)
        assert not takers or owners[place] in takers
    assert owners.keys() <= set(places)
    for topic in ("t", "u"):
        counts = [
            sum(place.topic == topic for place in given[member])
            for member, claim in claims.items()
            if topic in claim.topics
        ]
        assert not counts or max(counts) - min(counts) <= 1


@BOUNDED
@given(groups())
def test_no_more_move_than_balance_needs(
    group: tuple[list[TopicPartition], dict[str, Claim]],
) -> None:
    """Sticky: what need not move stays, and a second round moves nothing at all."""
    places, claims = group
    given = assign_idlest(places, claims)
    assert moved_from(claims, given) == fewest_moves(places, claims)
    again = {
        member: Claim(topics=("t",), held=dict.fromkeys(held, 1)) for member, held in given.items()
    }
    assert assign_idlest(places, again) == given


@BOUNDED
@given(st.integers(1, 16), st.data())
def test_a_join_moves_only_idle_ones_where_enough_are_idle(count: int, data: st.DataObject) -> None:
    """A newcomer costs nobody a takeover as long as idle partitions make up its share."""
    places = lanes(count)
    members = data.draw(st.integers(1, 4))
    shares = {MEMBERS[index]: places[index::members] for index in range(members)}
    keep = count // (members + 1)
    claims = {}
    for member, held in shares.items():
        busy = data.draw(
            st.sets(st.sampled_from(held), max_size=min(keep, len(held)))
            if held
            else st.just(set())
        )
        claims[member] = Claim(topics=("t",), held={place: int(place in busy) for place in held})
    given = assign_idlest(places, claims | {"new": Claim(topics=("t",))})
    for member, claim in claims.items():
        assert all(not claim.held[place] for place in claim.held.keys() - given[member])


@BOUNDED
@given(st.integers(2, 16), st.data())
def test_what_one_member_gives_up_is_its_idlest(count: int, data: st.DataObject) -> None:
    """Nothing that moved had more work than anything that stayed."""
    work = {place: data.draw(st.integers(0, 5)) for place in lanes(count)}
    claims = {"old": Claim(topics=("t",), held=work), "new": Claim(topics=("t",))}
    given = assign_idlest(lanes(count), claims)
    assert len(given["new"]) == count // 2
    assert max(work[place] for place in given["new"]) <= min(work[place] for place in given["old"])


def test_the_newer_round_settles_a_claim_of_two() -> None:
    """A member that slept through a round does not get back what went on to another."""
    (place,) = lanes(1)
    claims = {
        "sleeper": Claim(topics=("t",), held={place: 9}, round=3),
        "owner": Claim(topics=("t",), held={place: 0}, round=4),
    }
    assert assign_idlest([place], claims)["owner"] == {place}
    assert newest_round(claims.values()) == 5
