"""Each alert goes off when it should and not before: by Prometheus's own tool, on series that are made up."""

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import yaml

from support.metrics.prometheus import ALERTS, OPS, alerts, check_rules, needs_prometheus

STEP = 60  # seconds from one sample to the next

# For each alert: series on which it goes off, as promtool writes them, and by which labels; and the same on which it does not.
CASES: Mapping[str, tuple[Mapping[str, str], str, Mapping[str, str]]] = {
    "ToolfleetUnseen": ({"up": "1x60"}, "", {"toolfleet_redis_up": "1x60"}),
    "ToolfleetRedisAway": (
        {'toolfleet_redis_up{instance="a"}': "0x60", 'toolfleet_redis_up{instance="b"}': "0x60"},
        "",
        {'toolfleet_redis_up{instance="a"}': "0x60", 'toolfleet_redis_up{instance="b"}': "1x60"},
    ),
    "ToolfleetBrokerAway": (
        {'toolfleet_broker_up{instance="a"}': "0x60", 'toolfleet_redis_up{instance="a"}': "1x60"},
        "",
        {'toolfleet_broker_up{instance="a"}': "0x60", 'toolfleet_broker_up{instance="b"}': "1x60"},
    ),
    "ToolfleetRedisSlow": (
        {
            'toolfleet_redis_round_trip_seconds_bucket{le="0.1"}': "0+0x60",
            'toolfleet_redis_round_trip_seconds_bucket{le="0.25"}': "0+30x60",
            'toolfleet_redis_round_trip_seconds_bucket{le="+Inf"}': "0+30x60",
        },
        "",
        {
            'toolfleet_redis_round_trip_seconds_bucket{le="0.1"}': "0+29x60",
            'toolfleet_redis_round_trip_seconds_bucket{le="0.25"}': "0+30x60",
            'toolfleet_redis_round_trip_seconds_bucket{le="+Inf"}': "0+30x60",
        },
    ),
    "ToolfleetQueueUnserved": (
        {
            'toolfleet_queue_waiting{queue="tools.owls",lane="fast"}': "3x60",
            'toolfleet_queue_workers{queue="tools.owls",lane="fast"}': "0x60",
        },
        'queue="tools.owls",lane="fast"',
        {
            'toolfleet_queue_waiting{queue="tools.owls",lane="fast"}': "3x60",
            'toolfleet_queue_workers{queue="tools.owls",lane="fast"}': "1x60",
            'toolfleet_queue_waiting{queue="tools.larks",lane="fast"}': "3x60",
            'toolfleet_queue_workers{queue="tools.larks",lane="fast"}': "0x60",
            'toolfleet_queue_state{queue="tools.larks",lane="fast"}': "2x60",
        },
    ),
    "ToolfleetQueueOld": (
        {'toolfleet_queue_oldest_seconds{queue="tools.owls",lane="fast"}': "0+30x60"},
        'queue="tools.owls",lane="fast"',
        {
            'toolfleet_queue_oldest_seconds{queue="tools.owls",lane="fast"}': "29x60",
            'toolfleet_queue_oldest_seconds{queue="tools.larks",lane="fast"}': "0+30x60",
            'toolfleet_queue_state{queue="tools.larks",lane="fast"}': "2x60",
        },
    ),
    "ToolfleetQueueStuck": (
        {
            'toolfleet_queue_waiting{queue="tools.owls",lane="fast"}': "3x60",
            'toolfleet_queue_workers{queue="tools.owls",lane="fast"}': "1x60",
            'toolfleet_queue_running{queue="tools.owls",lane="fast"}': "0x60",
        },
        'queue="tools.owls",lane="fast"',
        {
            # It runs some.
            'toolfleet_queue_waiting{queue="tools.owls",lane="fast"}': "3x60",
            'toolfleet_queue_workers{queue="tools.owls",lane="fast"}': "1x60",
            'toolfleet_queue_running{queue="tools.owls",lane="fast"}': "1x60",
            # It is paused.
            'toolfleet_queue_waiting{queue="tools.larks",lane="fast"}': "3x60",
            'toolfleet_queue_workers{queue="tools.larks",lane="fast"}': "1x60",
            'toolfleet_queue_running{queue="tools.larks",lane="fast"}': "0x60",
            'toolfleet_queue_state{queue="tools.larks",lane="fast"}': "2x60",
            # Redis says how old its calls are.
            'toolfleet_queue_waiting{queue="tools.wrens",lane="fast"}': "3x60",
            'toolfleet_queue_workers{queue="tools.wrens",lane="fast"}': "1x60",
            'toolfleet_queue_running{queue="tools.wrens",lane="fast"}': "0x60",
            'toolfleet_queue_oldest_seconds{queue="tools.wrens",lane="fast"}': "1x60",
        },
    ),
    "ToolfleetQueuePaused": (
        {'toolfleet_queue_state{queue="tools.owls",lane="fast"}': "1x70"},
        'queue="tools.owls",lane="fast"',
        {'toolfleet_queue_state{queue="tools.owls",lane="fast"}': "2x50 0x20"},
    ),
    "ToolfleetLaneFull": (
        {'toolfleet_lane_workers_wanted{lane="slow"}': "3x60", 'toolfleet_lane_workers{lane="slow"}': "2x60"},
        'lane="slow"',
        {'toolfleet_lane_workers_wanted{lane="slow"}': "2x60", 'toolfleet_lane_workers{lane="slow"}': "2x60"},
    ),
    "ToolfleetWorkerNotReady": (
        {'toolfleet_worker_ready{instance="a"}': "0x60"},
        'instance="a"',
        {'toolfleet_worker_ready{instance="a"}': "0 0 0 1x57"},
    ),
    "ToolfleetLoopStalled": (
        {'toolfleet_loop_stalled_seconds{instance="a"}': "0+30x60"},
        'instance="a"',
        {'toolfleet_loop_stalled_seconds{instance="a"}': "4x60"},
    ),
    "ToolfleetBreakerOpen": (
        {'toolfleet_breaker_state{module="owls"}': "2x60"},
        'module="owls"',
        {'toolfleet_breaker_state{module="owls"}': "1x60"},
    ),
    "ToolfleetCallsFail": (
        {
            'toolfleet_calls_total{module="owls",outcome="success"}': "0+80x60",
            'toolfleet_calls_total{module="owls",outcome="failed"}': "0+20x60",
        },
        'module="owls"',
        {
            'toolfleet_calls_total{module="owls",outcome="success"}': "0+95x60",
            'toolfleet_calls_total{module="owls",outcome="failed"}': "0+5x60",
            'toolfleet_calls_total{module="bats",outcome="failed"}': "0+0.1x60",
        },
    ),
    "ToolfleetOutcomesUnknown": (
        {'toolfleet_calls_total{module="owls",effect_state="unknown"}': "0x20 1x20"},
        'module="owls"',
        {'toolfleet_calls_total{module="owls",effect_state="done"}': "0+5x60"},
    ),
    "ToolfleetCallsQueueLong": (
        {
            'toolfleet_call_queued_seconds_bucket{module="owls",le="5"}': "0+0x60",
            'toolfleet_call_queued_seconds_bucket{module="owls",le="7.5"}': "0+9x60",
            'toolfleet_call_queued_seconds_bucket{module="owls",le="+Inf"}': "0+9x60",
        },
        'module="owls"',
        {
            'toolfleet_call_queued_seconds_bucket{module="owls",le="5"}': "0+99x60",
            'toolfleet_call_queued_seconds_bucket{module="owls",le="7.5"}': "0+100x60",
            'toolfleet_call_queued_seconds_bucket{module="owls",le="+Inf"}': "0+100x60",
        },
    ),
    "ToolfleetCallsRefused": (
        {'toolfleet_admission_refusals_total{reason="full"}': "0+120x60"},
        'reason="full"',
        {'toolfleet_admission_refusals_total{reason="full"}': "0+3x60"},
    ),
    "ToolfleetClaimsLost": (
        {'toolfleet_claims_lost_total{module="owls"}': "0+1x60"},
        'module="owls"',
        {'toolfleet_claims_lost_total{module="owls"}': "0x20 1x20"},
    ),
    "ToolfleetResultsLate": (
        {'toolfleet_results_late_total{module="owls"}': "0+1x60"},
        'module="owls"',
        {'toolfleet_results_late_total{module="owls"}': "0x20 1x20"},
    ),
    "ToolfleetDeadLetters": (
        {'toolfleet_dead_letters{kind="call"}': "1x60"},
        'kind="call"',
        {'toolfleet_dead_letters{kind="call"}': "0x60"},
    ),
    "ToolfleetQuarantined": (
        {"toolfleet_quarantined_total": "0x20 1x20"},
        "",
        {"toolfleet_quarantined_total": "7x60"},
    ),
    "ToolfleetJobsLate": ({"toolfleet_jobs_late": "1x60"}, "", {"toolfleet_jobs_late": "0 1 0 1 0 1 0x54"}),
    "ToolfleetWakeupsWaiting": (
        {'toolfleet_wakeups_waiting{kind="job"}': "200x60"},
        'kind="job"',
        {'toolfleet_wakeups_waiting{kind="job"}': "100x60"},
    ),
    "ToolfleetApprovalsWaiting": (
        {"toolfleet_approvals_waiting": "1x70"},
        "",
        {"toolfleet_approvals_waiting": "1x30 0x40"},
    ),
    "ToolfleetAuditMissed": (
        {"toolfleet_audit_lines_missed_total": "0x20 1x20"},
        "",
        {"toolfleet_audit_lines_missed_total": "4x60"},
    ),
}


@needs_prometheus
def test_each_alert_goes_off_when_it_should(tmp_path: Path) -> None:
    """Promtool plays half an hour, or what it takes, of samples that call for it, and of samples that do not.

    It evaluates all rules of a file at every step, so each alert is in a file of its own.
    """
    files = list[Path]()
    for alert, (firing, labels, quiet) in CASES.items():
        own = f"{labels}," if labels else ""
        found = (
            f'ALERTS{{alertname="{alert}",alertstate="firing",{own}severity="{_rules()[alert]["labels"]["severity"]}"}}'
        )
        tests = [_case(alert, firing, [{"labels": found, "value": 1}]), _case(alert, quiet, [])]
        rule, file = tmp_path / f"{alert}.rule.yaml", tmp_path / f"{alert}.yaml"
        rule.write_text(json.dumps({"groups": [{"name": alert, "rules": [_rules()[alert]]}]}))
        file.write_text(json.dumps({"rule_files": [str(rule)], "evaluation_interval": f"{STEP}s", "tests": tests}))
        files.append(file)

    assert check_rules(files).count("SUCCESS") == len(CASES)


def test_each_alert_has_its_case() -> None:
    """None is without one."""
    assert CASES.keys() == alerts().keys()


def test_the_guide_explains_each_alert() -> None:
    """In the order of the file."""
    guide = (OPS.parent / "docs" / "operations" / "metrics.md").read_text()

    assert re.findall(r"^\| `(Toolfleet\w+)`", guide, re.MULTILINE) == list(alerts())


def test_each_alert_says_what_is_wrong_and_what_to_do() -> None:
    """Each is for a person: at once, or when there is time."""
    for alert, rule in _rules().items():
        assert rule["annotations"].keys() == {"summary", "action"}, alert
        assert rule["labels"]["severity"] in {"page", "ticket"}, alert


@cache
def _rules() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """The rule of each alert."""
    (rules,) = (group["rules"] for group in yaml.safe_load(ALERTS.read_text())["groups"])
    return {rule["alert"]: rule for rule in rules}


def _case(alert: str, series: Mapping[str, str], found: list[dict[str, object]]) -> dict[str, object]:
    minutes = 62 if alert in {"ToolfleetApprovalsWaiting", "ToolfleetQueuePaused"} else 28
    expression = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
    return {
        "interval": f"{STEP}s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": expression, "eval_time": f"{minutes}m", "exp_samples": found}],
    }
