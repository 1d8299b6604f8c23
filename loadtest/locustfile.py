"""locust against an OpenAI-compatible server: streamed chats in the shapes of `loadtest.shapes`.

    locust -f loadtest/locustfile.py --host http://127.0.0.1:8000                  (web UI on port 8089)
    locust -f loadtest/locustfile.py --host http://127.0.0.1:8000 --headless --load-profile multiturn

TTFT, ITL, TPOT and E2E (ms) are request types of their own beside POST; LAG is how late a trace's request was asked.
How many prompt tokens came from a cache is printed at the end and stands on the web UI's page /cache.

locust patches the standard library for gevent on import, `time.sleep` and threads with it: nothing but locust imports
this file.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
from locust import FastHttpUser, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.exception import StopUser
from locust.runners import MasterRunner, Runner, WorkerRunner

from loadtest.load import Load
from loadtest.measure import StreamMeasure
from loadtest.profile import ProfileError
from loadtest.shapes import Ask
from loadtest.traces import TraceError
from loadtest.webpage import add_cache_page

log = logging.getLogger(__name__)

CHAT = "/v1/chat/completions"
_LOAD = "kvrouter_load"
_REPORT = "kvrouter_tally"


def load_of(environment: Environment) -> Load:
    """The load of the run that is on, or of the one to come."""
    load = vars(environment)[_LOAD]
    assert isinstance(load, Load)
    return load


def _add_arguments(parser: LocustArgumentParser) -> None:
    add: Any = parser.add_argument
    add("--load-profile", default="demo", env_var="LOADTEST_PROFILE", help="a name or a YAML file (default: demo)")
    add(
        "--shape",
        default="",
        env_var="LOADTEST_SHAPE",
        choices=["", "shared-prefix", "multi-turn", "trace"],
        help="another shape than the profile's",
    )
    add("--trace", default="", env_var="LOADTEST_TRACE", help="a JSONL trace, gzipped or not: implies its shape")
    add("--model", default="", env_var="LOADTEST_MODEL", help="default: the first that the server lists")
    add("--api-key", default="", env_var="LOADTEST_API_KEY", is_secret=True, help="sent as a bearer token")
    add("--load-seed", type=int, default=-1, help="another seed than the profile's")
    add("--summary-json", default="", include_in_web_ui=False, help="write the sums of the run to this file")


def _init(environment: Environment, runner: Runner, web_ui: Any, **_: Any) -> None:
    on: Any = environment.events
    options: Any = environment.parsed_options
    try:
        load = vars(environment)[_LOAD] = Load(options)
    except (ProfileError, TraceError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from None
    options.num_users = options.num_users or load.profile.users
    options.spawn_rate = options.spawn_rate or load.profile.spawn_rate
    if options.headless and not options.run_time:
        options.run_time = load.profile.run_time_s
    if isinstance(runner, MasterRunner):
        on.worker_report.add_listener(lambda client_id, data: _take_report(environment, data))
    if isinstance(runner, WorkerRunner):
        on.report_to_master.add_listener(
            lambda client_id, data: data.__setitem__(_REPORT, load_of(environment).report())
        )
    if web_ui is not None:
        add_cache_page(web_ui, lambda: load_of(environment).tally)


def _take_report(environment: Environment, data: dict[str, Any]) -> None:
    if _REPORT in data:
        load_of(environment).take_report(data[_REPORT])


def _start(environment: Environment, **_: Any) -> None:
    options: Any = environment.parsed_options
    runner = environment.runner
    processes = max(1, options.processes or 1, options.expect_workers or 1)
    index = runner.worker_index if isinstance(runner, WorkerRunner) else 0
    vars(environment)[_LOAD] = Load(options, index=index, processes=processes)
    if not isinstance(runner, WorkerRunner):
        threading.Thread(target=_end_when_everybody_left, args=(environment,), daemon=True).start()


def _end_when_everybody_left(environment: Environment) -> None:
    """A load of fixed size is over before its time is: users leave, and nobody comes after them."""
    runner = environment.runner
    assert runner is not None
    while runner.state in ("ready", "spawning"):
        time.sleep(0.2)
    while runner.state == "running" and runner.user_count:
        time.sleep(0.2)
    if runner.state == "running":
        log.info("every user has left: the load is over")
        end = runner.quit if environment.web_ui is None else runner.stop
        end()


def _summarize(environment: Environment, **_: Any) -> None:
    if isinstance(environment.runner, WorkerRunner):
        return
    tally = load_of(environment).tally
    sys.stderr.write(f"\n{tally}\n")
    if environment.parsed_options and environment.parsed_options.summary_json:
        sums = {**msgspec.structs.asdict(tally), "hit_rate": tally.hit_rate}
        Path(environment.parsed_options.summary_json).write_bytes(msgspec.json.encode(sums))


class OpenAIUser(FastHttpUser):
    """One user: asks what its script says and tells it the answers."""

    network_timeout = 300.0
    connection_timeout = 10.0

    def on_start(self) -> None:
        self.load = load_of(self.environment)
        self.script = self.load.next_script()
        if not self.load.model:
            self.load.model = self._first_model()

    @task
    def follow_script(self) -> None:
        try:
            ask = next(self.script)
            while True:
                ask = self.script.send(self._perform(ask))
        except StopIteration:
            raise StopUser from None

    def _first_model(self) -> str:
        with self.client.get("/v1/models", headers=self.load.headers, catch_response=True) as response:
            try:
                model: str = msgspec.json.decode(response.content or b"")["data"][0]["id"]
            except (msgspec.DecodeError, KeyError, IndexError, TypeError):
                response.failure("no model listed")
                raise StopUser from None
            return model

    def _perform(self, ask: Ask) -> str | None:
        """The assistant's answer, or None when there was no good one."""
        wait_s = self.load.due_in_s(ask)
        if wait_s > 0:
            time.sleep(wait_s)
        if ask.due_s is not None:
            self._fire("LAG", ask, max(0.0, -wait_s))
        body = self.load.body(ask)
        measure = StreamMeasure(time.perf_counter())
        with self.client.post(
            CHAT, name=ask.name, data=body, headers=self.load.headers, stream=True, catch_response=True
        ) as response:
            trouble: str | None
            if response.status_code != 200:
                trouble = f"status {response.status_code}"
            else:
                try:
                    self._read(response, ask, measure)
                    trouble = measure.trouble
                except (OSError, ValueError) as error:
                    trouble = f"the stream broke: {type(error).__name__}"
            if trouble is not None:
                response.failure(trouble)
        self.load.ended(measure, failed=trouble is not None)
        if trouble is not None:
            return None
        self._fire("E2E", ask, measure.e2e_s)
        if measure.tpot_s is not None:
            self._fire("TPOT", ask, measure.tpot_s)
        return measure.answer

    def _read(self, response: Any, ask: Ask, measure: StreamMeasure) -> None:
        """Reads to the end of the stream, firing TTFT and every ITL as they are seen."""
        line = measure.line
        seen_first = False
        for raw in iter(lambda: response.stream.readline(b"\n"), b""):
            gap = line(bytes(raw), time.perf_counter())
            if gap is not None:
                self._fire("ITL", ask, gap)
            elif not seen_first and measure.ttft_s is not None:
                seen_first = True
                self._fire("TTFT", ask, measure.ttft_s)

    def _fire(self, kind: str, ask: Ask, seconds: float) -> None:
        self.environment.events.request.fire(
            request_type=kind,
            name=ask.name,
            response_time=1000 * seconds,
            response_length=0,
            exception=None,
            context={},
        )


def _register(on: Any) -> None:
    """`on`: locust's event hooks, which carry no types."""
    on.init_command_line_parser.add_listener(_add_arguments)
    on.init.add_listener(_init)
    on.test_start.add_listener(_start)
    on.quitting.add_listener(_summarize)


_register(events)
