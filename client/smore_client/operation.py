"""How one definition of an operation becomes a method of both clients."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, get_args, get_origin, overload

from smore_client.transport import Answer, Broken, Call, Flow, Item, Open, Pause, ReadLine, Stream

S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")


class Lines:
    """An answer that goes on: its ``head``, which has a body where it was refused, and its lines."""

    head: Answer | Broken

    def read(self) -> str | Broken | None:
        """The next line, None behind the last one."""
        raise NotImplementedError

    def close(self) -> None:
        """End the connection."""
        raise NotImplementedError


class AsyncLines:
    """The same, awaited."""

    head: Answer | Broken

    async def read(self) -> str | Broken | None:
        """The next line, None behind the last one."""
        raise NotImplementedError

    async def close(self) -> None:
        """End the connection."""
        raise NotImplementedError


class Carrier:
    """Performs flows and streams, and blocks while a step lasts."""

    def perform(self, step: Call | Pause) -> Answer | Broken | None:
        """Send the request, or wait."""
        raise NotImplementedError

    def open(self, call: Call) -> Lines:
        """Send a request whose answer goes on."""
        raise NotImplementedError

    def carry(self, flow: Flow[T]) -> T:
        """Perform a flow, such as one of :mod:`smore_client.admin`, and return its result."""
        outcome: Answer | Broken | None = None
        while True:
            try:
                step = flow.send(outcome)
            except StopIteration as end:
                result: T = end.value
                return result
            outcome = self.perform(step)

    def stream(self, stream: Stream[T]) -> Iterator[T]:
        """Perform a stream, such as one of :mod:`smore_client.admin`, and yield its items."""
        outcome: Answer | Broken | str | None = None
        lines: Lines | None = None
        try:
            while True:
                try:
                    step = stream.send(outcome)
                except StopIteration:
                    return
                match step:
                    case Item():
                        outcome = None
                        yield step.value
                    case Open():
                        if lines is not None:
                            lines.close()
                        lines = self.open(step.call)
                        outcome = lines.head
                    case ReadLine():
                        assert lines is not None
                        outcome = lines.read()
                    case _:
                        outcome = self.perform(step)
        finally:
            if lines is not None:
                lines.close()


class AsyncCarrier:
    """Performs flows and streams on the running event loop."""

    async def perform(self, step: Call | Pause) -> Answer | Broken | None:
        """Send the request, or wait."""
        raise NotImplementedError

    async def open(self, call: Call) -> AsyncLines:
        """Send a request whose answer goes on."""
        raise NotImplementedError

    async def carry(self, flow: Flow[T]) -> T:
        """Perform a flow, such as one of :mod:`smore_client.admin`, and return its result."""
        outcome: Answer | Broken | None = None
        while True:
            try:
                step = flow.send(outcome)
            except StopIteration as end:
                result: T = end.value
                return result
            outcome = await self.perform(step)

    async def stream(self, stream: Stream[T]) -> AsyncIterator[T]:
        """Perform a stream, such as one of :mod:`smore_client.admin`, and yield its items."""
        outcome: Answer | Broken | str | None = None
        lines: AsyncLines | None = None
        try:
            while True:
                try:
                    step = stream.send(outcome)
                except StopIteration:
                    return
                match step:
                    case Item():
                        outcome = None
                        yield step.value
                    case Open():
                        if lines is not None:
                            await lines.close()
                        lines = await self.open(step.call)
                        outcome = lines.head
                    case ReadLine():
                        assert lines is not None
                        outcome = await lines.read()
                    case _:
                        outcome = await self.perform(step)
        finally:
            if lines is not None:
                await lines.close()


class operation(Generic[S, P, T]):  # noqa: N801 - a decorator
    """
    A method that is written once, as a generator of :data:`~smore_client.transport.Flow`, and performed by the client.

    On a :class:`Carrier` the call returns the result, on an :class:`AsyncCarrier` a coroutine of it. Read from the
    class it is the generator itself. An operation must not call another one: on a client that would perform it. Steps
    that operations share are plain generators.
    """

    def __init__(self, function: Callable[Concatenate[S, P], Flow[T]]) -> None:
        self.function = function
        # What `help` shows: callers get the result of the flow.
        function.__annotations__["return"] = get_args(function.__annotations__["return"])[2]
        function.__signature__ = _spelt_out(function)  # type: ignore[attr-defined]

    @overload
    def __get__(self, instance: None, owner: type) -> Callable[Concatenate[S, P], Flow[T]]: ...
    @overload
    def __get__(self, instance: Carrier, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, instance: AsyncCarrier, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, instance: Any, owner: type) -> Callable[..., Any]:
        if instance is None:
            return self.function

        @wraps(self.function)
        def perform(*args: Any, **options: Any) -> Any:
            return instance.carry(self.function(instance, *args, **options))

        return perform


def _spelt_out(function: Callable[..., Any]) -> Signature:
    """The signature that `help` shows, with each argument of ``**options: Unpack[…]`` by its name."""
    whole = signature(function)
    parameters: list[Parameter] = []
    for parameter in whole.parameters.values():
        if parameter.kind is Parameter.VAR_KEYWORD and get_origin(parameter.annotation) is Unpack:
            (options,) = get_args(parameter.annotation)
            parameters += [
                Parameter(name, Parameter.KEYWORD_ONLY, default=False if hint is bool else None, annotation=hint)
                for name, hint in options.__annotations__.items()
            ]
        else:
            parameters.append(parameter)
    return whole.replace(parameters=parameters)


class iteration(Generic[S, P, T]):  # noqa: N801 - a decorator
    """
    The same for a generator of :data:`~smore_client.transport.Stream`: on a :class:`Carrier` the call returns an
    iterator, on an :class:`AsyncCarrier` an asynchronous one.
    """

    def __init__(self, function: Callable[Concatenate[S, P], Stream[T]]) -> None:
        self.function = function

    @overload
    def __get__(self, instance: None, owner: type) -> Callable[Concatenate[S, P], Stream[T]]: ...
    @overload
    def __get__(self, instance: Carrier, owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, instance: AsyncCarrier, owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, instance: Any, owner: type) -> Callable[..., Any]:
        if instance is None:
            return self.function

        @wraps(self.function)
        def perform(*args: Any, **options: Any) -> Any:
            return instance.stream(self.function(instance, *args, **options))

        return perform
