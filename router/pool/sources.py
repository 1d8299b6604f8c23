"""Sources: which upstreams each source of endpoints names, and which there are to be in all. PURE."""

from __future__ import annotations

from collections.abc import Container, Iterable

from router.errors import ConfigError
from router.pool.spec import EndpointSpec


class Sources:
    def __init__(self) -> None:
        self._named: dict[str, tuple[EndpointSpec, ...]] = {}

    def replace(self, source: str, specs: Iterable[EndpointSpec]) -> dict[str, EndpointSpec]:
        """What `source` names from now on. Returns all that there are to be, by id, in the order of the sources; of two
        sources that name the same endpoint the earlier one's counts.

        Raises `ConfigError`, changing nothing, when `specs` name an endpoint twice.
        """
        given = tuple(specs)
        _refuse_twins(given)
        self._named[source] = given
        wanted: dict[str, EndpointSpec] = {}
        for named in self._named.values():
            for spec in named:
                if not _is_rank_of(spec.id, wanted):
                    wanted.setdefault(spec.id, spec)
        return wanted


def _refuse_twins(specs: Iterable[EndpointSpec]) -> None:
    ids = [spec.id for spec in specs]
    seen: set[str] = set()
    for upstream_id in ids:
        if upstream_id in seen or _is_rank_of(upstream_id, ids):
            raise ConfigError(
                f"endpoint {upstream_id} is listed twice: list it once (role both serves either leg), "
                "or give one of the two another name."
            )
        seen.add(upstream_id)


def _is_rank_of(upstream_id: str, ids: Container[str]) -> bool:
    """Whether it reads like the endpoint of a rank of another upstream."""
    base, _, rank = upstream_id.rpartition("/")
    return rank.isdigit() and base in ids
