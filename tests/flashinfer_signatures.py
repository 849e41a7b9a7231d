"""How the stand-ins of FlashInfer get the signatures of the wheels, and remember their calls."""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

Given = Mapping[str, Any]
Body = Callable[..., object]
Method = Callable[..., object]


def method(name: str, needs: Collection[str], options: Given, body: Body) -> Method:
    """Return a method that binds its arguments to a signature and hands them to `body`.

    A "*" among options or needs says that those after it are keywords alone; needs may end in
    "*args". Each call and its keywords are kept in `calls` of the instance.
    """
    kinds = inspect.Parameter
    parameters = [kinds("self", kinds.POSITIONAL_OR_KEYWORD)]
    rest: Any = kinds.POSITIONAL_OR_KEYWORD
    for need in needs:
        if need.startswith("*"):
            rest = kinds.KEYWORD_ONLY
            if need != "*":
                parameters.append(kinds(need[1:], kinds.VAR_POSITIONAL))
        else:
            parameters.append(kinds(need, rest))
    for key, value in options.items():
        if key == "*":
            rest = kinds.KEYWORD_ONLY
        else:
            parameters.append(kinds(key, rest, default=value))
    signature = inspect.Signature(parameters)

    def call(*args: object, **kwargs: object) -> object:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        self = given.pop("self")
        vars(self).setdefault("calls", []).append((name, kwargs))
        return body(self, given)

    vars(call)["__signature__"] = signature
    return call
