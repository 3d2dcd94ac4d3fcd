"""Signals ask us to end, where and when that is safe."""

import asyncio
import gc
import signal

import pytest

from toolfleet_cli.local.supervisor import StopRequested, stop_signals


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_where_that_is_allowed(signum: signal.Signals) -> None:
    """In `interrupts` each of them raises at once."""
    with stop_signals() as signals, signals.interrupts(), pytest.raises(StopRequested):
        signal.raise_signal(signum)


def test_a_signal_ends_an_event_loop() -> None:
    """It comes out of `asyncio.run`, whatever the loop is at."""

    async def work() -> None:
        asyncio.get_running_loop().call_later(0.01, signal.raise_signal, signal.SIGTERM)
        await asyncio.Event().wait()

    with stop_signals() as signals, signals.interrupts(), pytest.raises(StopRequested):
        asyncio.run(work())


def test_a_signal_strikes_no_task(caplog: pytest.LogCaptureFixture) -> None:
    """A task in whose turn it comes ends as cancelled: nothing is reported of an exception that was never retrieved."""

    async def signalled() -> None:
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()

    async def work() -> None:
        await asyncio.gather(signalled(), asyncio.Event().wait())

    with stop_signals() as signals, signals.interrupts(), pytest.raises(StopRequested):
        asyncio.run(work())
    gc.collect()

    assert "StopRequested" not in caplog.text


def test_elsewhere_a_signal_waits_to_be_asked_for() -> None:
    """Outside `interrupts` a request is noted and raised by `check`."""
    with stop_signals() as signals:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(StopRequested):
            signals.check()


def test_what_must_not_be_interrupted_is_not() -> None:
    """In `held` a request waits for the end of the block."""
    done: list[str] = []
    with stop_signals() as signals, signals.interrupts(), pytest.raises(StopRequested), signals.held():
        done.extend(_after_a_signal())

    assert done == ["still here"]


def test_a_request_before_the_body_keeps_it_from_starting() -> None:
    """Entering `interrupts` raises if we were asked before."""
    with stop_signals() as signals:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(StopRequested), signals.interrupts():
            pytest.fail("the body has started")


def test_a_second_request_is_a_hurry() -> None:
    with stop_signals() as signals:
        signal.raise_signal(signal.SIGINT)
        assert not signals.in_hurry
        signal.raise_signal(signal.SIGINT)

        assert signals.in_hurry


def test_the_signals_are_given_back() -> None:
    """After the block the handlers are those from before."""
    before = signal.getsignal(signal.SIGTERM)
    with stop_signals():
        assert signal.getsignal(signal.SIGTERM) is not before

    assert signal.getsignal(signal.SIGTERM) is before


def test_under_nohup_the_end_of_the_terminal_is_not_ours() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals() as signals:
            signal.raise_signal(signal.SIGHUP)
            signals.check()
    finally:
        signal.signal(signal.SIGHUP, before)


def _after_a_signal() -> list[str]:
    signal.raise_signal(signal.SIGTERM)
    return ["still here"]
