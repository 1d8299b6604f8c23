from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.core import Health
from router.pool.health import HealthPolicy, HealthTracker

POLICY = HealthPolicy(probes_up=2, probes_down=3, request_failures_down=3, errors_down=5)


def after(signs: str, policy: HealthPolicy = POLICY, *, may_eject: bool = True) -> HealthTracker:
    tracker = HealthTracker()
    for sign in signs:
        match sign:
            case "+":
                tracker = tracker.probe_ok(policy)
            case "-":
                tracker = tracker.probe_failed(policy, "refused")
            case "r":
                tracker = tracker.request_ok()
            case "e":
                tracker = tracker.request_errored(policy, may_eject)
            case _:
                tracker = tracker.request_failed(policy, may_eject)
    return tracker


def test_the_first_probe_decides_about_an_endpoint_never_seen() -> None:
    assert after("").verdict is Health.UNKNOWN
    assert after("+").verdict is Health.HEALTHY
    assert after("-").verdict is Health.UNHEALTHY


def test_a_healthy_endpoint_goes_down_after_enough_failed_probes_in_a_row() -> None:
    assert after("+--").verdict is Health.HEALTHY
    assert after("+---").verdict is Health.UNHEALTHY
    assert after("+--+--").verdict is Health.HEALTHY
    assert after("+---").reason == "probe failed: refused"


def test_an_unhealthy_endpoint_comes_up_after_enough_good_probes_in_a_row() -> None:
    assert after("+---+").verdict is Health.UNHEALTHY
    assert after("+---++").verdict is Health.HEALTHY
    assert after("+---+-+").verdict is Health.UNHEALTHY


def test_consecutive_failed_requests_take_it_out_until_the_next_good_probe() -> None:
    assert after("+xx").verdict is Health.HEALTHY
    assert after("+xxx").verdict is Health.UNHEALTHY
    assert after("+xxx+").verdict is Health.HEALTHY


def test_a_request_that_ends_well_starts_the_count_anew_but_heals_nothing() -> None:
    assert after("+xxrxx").verdict is Health.HEALTHY
    assert after("+xxxr").verdict is Health.UNHEALTHY


def test_what_requests_took_out_comes_back_on_trial_until_a_request_is_answered() -> None:
    assert not after("+").on_trial
    assert not after("+---++").on_trial
    assert after("+xxx+").on_trial
    assert after("+xxx++").on_trial
    assert not after("+xxx+r").on_trial
    assert after("+xxx+r").verdict is Health.HEALTHY


def test_one_failure_ends_a_trial() -> None:
    assert after("+xxx+x").verdict is Health.UNHEALTHY
    assert after("+xxx+x++").on_trial
    assert after("+xxx+rx").verdict is Health.HEALTHY


def test_an_endpoint_whose_trials_go_on_failing_needs_more_and_more_good_probes() -> None:
    assert after("+xxx+x+").verdict is Health.UNHEALTHY
    assert after("+xxx+x++").verdict is Health.HEALTHY
    assert after("+xxx+x++x+++").verdict is Health.UNHEALTHY
    assert after("+xxx+x++x++++").verdict is Health.HEALTHY
    # An answered request ends the series.
    assert after("+xxx+x++rxxx+").verdict is Health.HEALTHY


def test_answers_that_are_errors_count_apart_and_a_good_one_clears_them() -> None:
    assert after("+eeee").verdict is Health.HEALTHY
    assert after("+eeeee").verdict is Health.UNHEALTHY
    assert after("+eeeereeee").verdict is Health.HEALTHY
    assert after("+eeeee+").on_trial
    assert after("+eeeee+e").verdict is Health.UNHEALTHY
    assert after("+eexxe").verdict is Health.HEALTHY


def test_what_may_not_be_taken_out_is_noted_and_stays() -> None:
    tracker = after("+xxxxx", may_eject=False)
    assert tracker.verdict is Health.HEALTHY
    assert tracker.request_failed(POLICY).verdict is Health.UNHEALTHY


def test_probes_between_failing_requests_do_not_hide_them() -> None:
    assert after("+x+x+x").verdict is Health.UNHEALTHY


def test_requests_and_probes_that_both_fail_need_the_full_return() -> None:
    assert after("+xxx-+").verdict is Health.UNHEALTHY
    assert after("+xxx-++").verdict is Health.HEALTHY


def test_a_return_clears_the_debt_of_requests() -> None:
    assert after("+xxx+rxx").verdict is Health.HEALTHY


@given(st.text(alphabet="+-rxe", max_size=40))
def test_steady_signs_always_win(signs: str) -> None:
    assert after(signs + "+" * POLICY.probes_up_most).verdict is Health.HEALTHY
    assert after(signs + "-" * POLICY.probes_down).verdict is Health.UNHEALTHY
    assert after(signs + "x" * POLICY.request_failures_down).verdict is Health.UNHEALTHY


@given(st.text(alphabet="+-rxe", max_size=60))
def test_the_tracker_stays_small(signs: str) -> None:
    tracker = after(signs)
    assert tracker.probes_ok <= POLICY.probes_up_most
    assert tracker.errors <= POLICY.errors_down
    assert tracker.taken_out <= POLICY.probes_up_most
    assert tracker.probes_failed <= POLICY.probes_down
    assert tracker.requests_failed <= POLICY.request_failures_down
