from __future__ import annotations

from pathlib import Path

import pytest
import redis

from kvindex.redis_address import parse_address
from router.errors import ConfigError
from router.workers.embedded import EmbeddedValkey
from router.workers.folder import meeting_place


def test_its_folder_may_have_any_name() -> None:
    with meeting_place(["/tmp"]) as short:
        folder = short / 'a "b'
        folder.mkdir()
        embedded = EmbeddedValkey(folder)
        embedded.start()
        try:
            client = redis.Redis(unix_socket_path=parse_address(embedded.url).path)
            assert client.ping()
            client.close()
            assert embedded.running
        finally:
            embedded.stop()
        assert not embedded.running


def test_why_it_does_not_start_is_told(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 110)
    folder.mkdir()
    with pytest.raises(ConfigError, match=r"does not start on this machine \(.*\): name a Redis with redis.url") as why:
        EmbeddedValkey(folder).start()
    assert "nothing came from it" not in str(why.value)
