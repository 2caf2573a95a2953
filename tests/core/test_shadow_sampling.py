"""Which hits are computed again: a function of seed and count, and of nothing else."""

import math

import pytest

from hybridcache_jax.identity import Identity
from hybridcache_jax.rollout import ReusePolicy, Rollout, Scope, chosen

ME = Identity("w", "c", "l")

# First outputs of SplitMix64 from state 1234567, as its reference program prints them.
PUBLISHED = (
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
)


def test_the_stream_is_the_published_one():
    """A hit is chosen exactly by shares above its number in the stream."""
    for number, bits in enumerate(PUBLISHED):
        fraction = (bits >> 11) / 2**53
        assert not chosen(1234567, number, fraction)
        assert chosen(1234567, number, math.nextafter(fraction, 1))


def test_none_and_all():
    for number in range(200):
        assert not chosen(7, number, 0.0)
        assert chosen(7, number, 1.0)


@pytest.mark.parametrize("share", [0.03, 0.5, 0.9])
@pytest.mark.parametrize("seed", [0, 1, -5, 2**80])
def test_the_share_is_met(share, seed):
    """Within five standard deviations of a coin's count."""
    count = 4000
    found = sum(chosen(seed, number, share) for number in range(count))
    assert abs(found - share * count) < 5 * math.sqrt(count * share * (1 - share))


def test_a_wider_share_chooses_more_of_the_same():
    few = {n for n in range(300) if chosen(3, n, 0.1)}
    many = {n for n in range(300) if chosen(3, n, 0.4)}
    assert few < many
    assert few != {n for n in range(300) if chosen(4, n, 0.1)}


def test_a_rollout_counts_its_own_hits():
    policy = ReusePolicy("namespace", shadow_share=0.3, seed=11)
    first, second = Rollout(policy), Rollout(policy)
    draws = [first.next_chosen() for _ in range(50)]
    assert draws == [chosen(11, number, 0.3) for number in range(50)]
    assert [second.next_chosen() for _ in range(50)] == draws
    assert True in draws
    assert False in draws


def test_a_policy_without_shares_chooses_nothing():
    rollout = Rollout(ReusePolicy("namespace"))
    assert not any(rollout.next_chosen() for _ in range(100))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"shadow_share": -0.1}, "between 0 and 1"),
        ({"shadow_share": 1.5}, "between 0 and 1"),
        ({"shadow_share": math.nan}, "between 0 and 1"),
        ({"shadow_tolerance": -1.0}, "finite number >= 0"),
        ({"shadow_tolerance": math.inf}, "finite number >= 0"),
        ({"shadow_tolerance": math.nan}, "finite number >= 0"),
        ({"shadow_share": "0.5"}, "between 0 and 1"),
        ({"shadow_tolerance": None}, "finite number >= 0"),
        ({"seed": 0.5}, "must be an integer"),
        ({"seed": True}, "must be an integer"),
        ({"producers": [("w", "off")]}, "must map an Identity to a scope"),
    ],
)
def test_a_policy_says_what_is_wrong(wrong, message):
    with pytest.raises(ValueError, match=message):
        ReusePolicy(**wrong)


def test_where_a_producer_falls():
    falls = {
        "off": Scope.OFF,
        "request": Scope.OFF,
        "session": Scope.REQUEST,
        "namespace": Scope.REQUEST,
        "global": Scope.REQUEST,
    }
    for scope, lower in falls.items():
        assert Rollout(ReusePolicy(scope)).narrower(ME) is lower
