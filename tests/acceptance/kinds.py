"""On which deployments a test runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from tests.support.stack import KINDS, PREFORK, SQLITE, THREADS, Kind

WITH_BROKER = (PREFORK, THREADS, SQLITE)


def shared(*kinds: Kind, slow: Collection[Kind] = ()) -> pytest.MarkDecorator:
    """The deployments that many tests share; those of a kind run one after the other.

    Two of them in the normal run, the others at full length: between them, embedded and prefork have both databases,
    both pools and the broker.
    """
    params = [pytest.param(kind, marks=pytest.mark.xdist_group(kind.name)) for kind in kinds[:2]]
    more = (*kinds[2:], *slow)
    params += [pytest.param(kind, marks=(pytest.mark.xdist_group(kind.name), pytest.mark.slow)) for kind in more]
    return pytest.mark.parametrize("stack", params, indirect=True, ids=str)


def own(*kinds: Kind, slow: Collection[Kind] = ()) -> pytest.MarkDecorator:
    """Kinds for `new_stack`: each start costs seconds, so all but the first run where the tests run at full length."""
    first, *others = kinds or KINDS
    more = [pytest.param(kind, marks=pytest.mark.slow) for kind in (*others, *slow)]
    return pytest.mark.parametrize("kind", [first, *more], ids=str)


def each(*kinds: Kind) -> list[Any]:
    """Kinds for a fixture that the tests of one file share: all but the first only at full length."""
    first, *others = kinds
    return [first, *(pytest.param(kind, marks=pytest.mark.slow) for kind in others)]
