"""Environment variables in place of keys of the file, so that one file serves several places.

``STREAM_SVT_<SECTION>_<KEY>``, such as ``STREAM_SVT_KAFKA_SESSION_TIMEOUT``, replaces a key of some sections. What is
monitored and who may give commands cannot be changed from the environment.
"""

from __future__ import annotations

from collections.abc import Mapping

from stream_svt.errors import Problem
from stream_svt.settings.document import Document
from stream_svt.settings.messages import did_you_mean
from stream_svt.settings.validation import Strict

ENVIRONMENT = "STREAM_SVT_"
"""What the variables that replace a key of the file begin with."""

_NOT_FROM_ENVIRONMENT = tuple(
    f"{ENVIRONMENT}{name}" for name in ("CONTROL_", "SEALING_ADOPT_PLAIN", "SEALING_KEY_LOST")
)


def apply_environment(
    document: Document, environ: Mapping[str, str], sections: Mapping[str, type[Strict]]
) -> None:
    """Let environment variables replace keys of some sections; report those that name no key."""
    for variable, text in sorted(environ.items()):
        if variable.startswith(_NOT_FROM_ENVIRONMENT):
            message = "who may give commands is said in the file only: remove the variable"
            document.problems.append(Problem(0, variable, message))
        for name, model in sections.items():
            prefix = f"{ENVIRONMENT}{name.upper()}_"
            if not variable.startswith(prefix):
                continue
            key = variable.removeprefix(prefix).lower()
            if key in model.model_fields:
                document.put((name, key), text, f"environment variable {variable}")
            else:
                near = did_you_mean(key, list(model.model_fields))
                message = f"environment variable names no key of {name}{near}"
                document.problems.append(Problem(0, variable, message))
