"""The options of `@job`: what is misspelt or out of range is refused where the task is declared."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from celery import Task

from celery_jobs.tasks import JobTask, app, job
from celery_jobs.tasks.options import CELERYS, OURS

NUMBERS = count()


def declared(**options: Any) -> JobTask:
    """A task of its own with these options."""

    def function(path: str, frames: int = 1) -> None: ...

    decorator: Any = job
    return decorator(**{"name": f"options.number_{next(NUMBERS)}", **options})(function)


# every task option of Celery's documentation (tasks, calling, the list of options and "custom task classes")
DOCUMENTED: dict[str, Any] = {
    "acks_late": True,
    "acks_on_failure": True,
    "acks_on_failure_or_timeout": True,
    "acks_on_timeout": True,
    "autoretry_for": (ConnectionError,),
    "backend": None,
    "bind": False,
    "compression": "gzip",
    "default_retry_delay": 60,
    "delivery_mode": 1,
    "dont_autoretry_for": (KeyError,),
    "exchange": "jobs",
    "exchange_type": "direct",
    "expires": 60,
    "ignore_result": True,
    "max_retries": None,
    "priority": 5,
    "pydantic": True,
    "pydantic_context": {},
    "pydantic_dump_kwargs": {},
    "pydantic_strict": True,
    "queue": "jobs",
    "rate_limit": "10/m",
    "reject_on_worker_lost": True,
    "Request": "celery_jobs.tasks.request:JobRequest",
    "resultrepr_maxsize": 10,
    "retry_backoff": True,
    "retry_backoff_max": 700,
    "retry_jitter": False,
    "retry_kwargs": {"max_retries": 5},
    "retry_on_worker_lost": True,
    "routing_key": "jobs",
    "send_events": False,
    "serializer": "json",
    "shared": False,
    "soft_time_limit": 1.5,
    "store_eager_result": True,
    "store_errors_even_if_ignored": True,
    "Strategy": "celery.worker.strategy:default",
    "throws": (KeyError,),
    "time_limit": 3,
    "track_started": False,
    "trail": False,
    "typing": False,
    "on_failure": print,
    "on_success": print,
    "on_retry": print,
    "before_start": print,
    "after_return": print,
}


@pytest.mark.parametrize("option", DOCUMENTED)
def test_every_option_that_celery_documents_is_taken(option: str) -> None:
    task = declared(**{option: DOCUMENTED[option]})
    assert app.tasks[task.name] is task
    assert task.coroutine is False


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("quue", "queue"),
        ("retries", "max_retries"),
        ("max_retry", "max_retries"),
        ("priorty", "priority"),
        ("timelimit", "time_limit"),
        ("on_cancelled", "on_cancel"),
        ("retry_on_workers_lost", "retry_on_worker_lost"),
        ("Queue", "queue"),
        ("ignore_results", "ignore_result"),
    ],
)
def test_an_option_that_nobody_knows_names_the_near_one(misspelt: str, meant: str) -> None:
    with pytest.raises(TypeError, match=f"no option '{misspelt}'; did you mean '{meant}'"):
        declared(**{misspelt: 1})


@pytest.mark.parametrize("option", ["run", "delay", "retry", "coroutine", "arguments", "_app", "request", "lazy"])
def test_what_is_no_option_of_a_task_cannot_be_replaced_by_one(option: str) -> None:
    with pytest.raises(TypeError, match="no option"):
        declared(**{option: 1})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("name", ""),
        ("queue", ""),
        ("queue", 3),
        ("category", " "),
        ("priority", 101),
        ("priority", -1),
        ("priority", 1.5),
        ("priority", True),
        ("max_attempts", 0),
        ("max_attempts", "3"),
        ("max_retries", -1),
        ("time_limit", 0),
        ("time_limit", -1),
        ("time_limit", float("nan")),
        ("soft_time_limit", "10"),
        ("default_retry_delay", -1),
        ("retry_backoff", -1),
        ("retry_on_worker_lost", "yes"),
        ("autoretry_for", ConnectionError),
        ("autoretry_for", "ConnectionError"),
        ("throws", (1,)),
        ("on_failure", 1),
    ],
)
def test_a_value_out_of_its_range_names_the_option_and_the_range(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"@job of .*: {option} must be .*, not "):
        declared(**{option: value})


@pytest.mark.parametrize("soft", [3, 4])
def test_a_soft_limit_comes_before_the_hard_one(soft: float) -> None:
    with pytest.raises(ValueError, match="must be less than time_limit"):
        declared(soft_time_limit=soft, time_limit=3)


def test_a_task_class_of_ones_own_is_ours_with_more() -> None:
    class Connected(JobTask):
        abstract = True
        endpoint = "here"

        def connection(self) -> str:
            return self.endpoint

    task: Any = declared(base=Connected, endpoint="there")
    assert task.connection() == "there"
    with pytest.raises(TypeError, match="no option 'endpint'"):
        declared(base=Connected, endpint="there")
    with pytest.raises(TypeError, match=r"must be a subclass of celery_jobs\.tasks\.JobTask"):
        declared(base=object)


def test_options_are_given_by_name() -> None:
    with pytest.raises(TypeError, match="options by name"):
        job("my.task")  # type: ignore[call-overload]


class TestOnCancel:
    def test_it_takes_the_arguments_of_the_task_in_any_order_or_none(self) -> None:
        for function in (
            lambda: None,
            lambda path, frames: None,
            lambda frames, path: None,
            lambda *, path, frames, more=1: None,
            lambda **anything: None,
        ):
            assert declared(on_cancel=function).clean_up is not None

    def test_it_is_called_by_name_with_defaults(self) -> None:
        seen: list[Any] = []
        task = declared(on_cancel=lambda frames, path: seen.append((path, frames)))
        assert task.clean_up is not None
        task.clean_up.after_cancel((("x",), {}))
        task.clean_up.after_cancel(((), {"path": "y", "frames": 2}))
        assert seen == [("x", 1), ("y", 2)]

    @pytest.mark.parametrize("function", [lambda path: None, lambda source, frames: None, lambda *paths: None])
    def test_anything_else_is_refused_where_the_task_is_declared(self, function: Any) -> None:
        with pytest.raises(TypeError, match=r"on_cancel of the task options.* \(path, frames=1\), or none"):
            declared(on_cancel=function)
        with pytest.raises(ValueError, match="on_cancel must be a function"):
            declared(on_cancel="release")

    def test_every_kind_of_parameter_reaches_it(self) -> None:
        seen: list[Any] = []

        def every(first: int, /, second: int, *rest: int, third: int = 3, **more: int) -> None: ...

        def clean(first: int, /, second: int, *rest: int, third: int, **more: int) -> None:
            seen.append((first, second, rest, third, more))

        task = job(name=f"options.number_{next(NUMBERS)}", on_cancel=clean)(every)
        assert task.clean_up is not None
        task.clean_up.after_cancel(((1, 2, 9), {"other": 4}))
        assert seen == [(1, 2, (9,), 3, {"other": 4})]


def test_no_attribute_of_celerys_task_class_is_forgotten() -> None:
    """A new version may bring a new option."""
    values = {name for name, value in vars(Task).items() if not name.startswith("_") and _is_plain(value)}
    methods_of_celery = {"MaxRetriesExceededError", "OperationalError"}
    assert values - CELERYS - OURS - {"abstract", "from_config", "request_stack"} - methods_of_celery == set()


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str | tuple)
